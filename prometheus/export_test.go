package promredisdelay

import "slices"

// Described are all metrics.
var Described = slices.Values(described)

// Labels returns the labels of names.
func Labels(names ...string) []string { return valid(names) }
