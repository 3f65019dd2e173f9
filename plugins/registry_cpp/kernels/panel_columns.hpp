// Before simd.hpp: a panel's columns are one vector, whatever the machine's registers hold.
#define PANEL_COLUMNS 16

