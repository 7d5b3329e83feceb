package machine

import (
	"os"
	"strconv"
	"strings"
)

// Load returns the load average of the last minute: how many processes ran or waited for a
// processor. It returns 0 and false on a system other than Linux.
func Load() (float64, bool) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, false
	}
	return parseLoad(string(text))
}

func parseLoad(text string) (float64, bool) {
	first, _, _ := strings.Cut(text, " ")
	load, err := strconv.ParseFloat(first, 64)
	return load, err == nil
}
