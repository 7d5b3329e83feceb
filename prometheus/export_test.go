package promredisdelay

import "slices"

// Described are all metrics.
var Described = slices.Values(described)
