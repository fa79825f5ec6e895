#pragma once

/// Counts a call; a launch also counts among the launches. Defined in runtime.cpp.
void hollow_note(const char* name, bool is_launch = false);
