package texts

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// wantRate says what ParseRate reads.
const wantRate = "want a number of messages in a time, such as 50/s, 10/m, 1/h, 1/d or 100/5s"

// units are the times that have a letter.
var units = []struct {
	letter string
	length time.Duration
}{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}}

// ParseRate reads a rate such as 50/s, and returns it in messages a second. The time is s, m, h or
// d, or a duration of package time. The error says what is wrong, and what would be right.
func ParseRate(text string) (float64, error) {
	number, unit, found := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(number, 64)
	switch {
	case text == "":
		return 0, errors.New("is empty; " + wantRate)
	case err != nil || math.IsNaN(n) || math.IsInf(n, 0):
		return 0, fmt.Errorf("is %q, and %q is not a number; %s", text, number, wantRate)
	case !found:
		return 0, fmt.Errorf("is %q, which has no time; %s", text, wantRate)
	case n <= 0:
		return 0, fmt.Errorf("is %q, and a rate is above 0; %s", text, wantRate)
	}
	length, err := lengthOf(unit)
	if err != nil {
		return 0, fmt.Errorf("is %q, and %w; %s", text, err, wantRate)
	}
	return n / length.Seconds(), nil
}

func lengthOf(unit string) (time.Duration, error) {
	for _, u := range units {
		if unit == u.letter {
			return u.length, nil
		}
	}
	length, err := time.ParseDuration(unit)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is no time", unit)
	case length <= 0:
		return 0, fmt.Errorf("the time %q is not above 0", unit)
	}
	return length, nil
}

// Rate returns a rate, in messages a second, as ParseRate reads it: in the shortest
// unit of which it is at least one, rounded to six digits. It returns "" for a rate of 0.
func Rate(rate float64) string {
	if rate <= 0 {
		return ""
	}
	for i, u := range units {
		if n := rate * u.length.Seconds(); n >= 0.9999995 || i == len(units)-1 {
			return strconv.FormatFloat(rounded(n), 'f', -1, 64) + "/" + u.letter
		}
	}
	return ""
}

// rounded returns a number with six digits.
func rounded(n float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(n, 'g', 6, 64), 64)
	return r
}
