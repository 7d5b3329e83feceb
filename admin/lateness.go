package admin

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Lateness is a histogram: it counts deliveries by how late they were. The zero value has none. Two
// of them are equal (==) if all their buckets are.
type Lateness struct{ counts queue.Lateness }

// LatenessBucket is a bucket of a Lateness. It has the deliveries that were later than AtMost of
// the bucket before it, and not later than its own.
type LatenessBucket struct {
	AtMost time.Duration // math.MaxInt64 for the last bucket, which has no bound
	Count  int
}

var latenessBounds = append(queue.LateBounds(), math.MaxInt64)

// Buckets returns all buckets, also empty ones, by their bounds. Now these are from a millisecond
// to a day. A later version may have others.
func (l Lateness) Buckets() []LatenessBucket {
	all := make([]LatenessBucket, len(l.counts))
	for i, n := range l.counts {
		all[i] = LatenessBucket{latenessBounds[i], n}
	}
	return all
}

// Count returns the number of deliveries.
func (l Lateness) Count() (n int) {
	for _, in := range l.counts {
		n += in
	}
	return n
}

// Quantile returns the smallest bound that at least a part q of the deliveries were not later than,
// such as 0.99. It returns 0 if there is no delivery, and math.MaxInt64 if no bound is large
// enough.
func (l Lateness) Quantile(q float64) time.Duration {
	total := l.Count()
	if total == 0 {
		return 0
	}
	wanted := max(1, int(math.Ceil(q*float64(total))))
	n := 0
	for i, bound := range latenessBounds {
		if n += l.counts[i]; n >= wanted {
			return bound
		}
	}
	return math.MaxInt64
}

// Add counts n more deliveries that were late by that.
func (l *Lateness) Add(late time.Duration, n int) {
	i, _ := slices.BinarySearch(latenessBounds, late)
	l.counts[i] += n
}

// Plus returns the deliveries of both, such as those of two groups.
func (l Lateness) Plus(other Lateness) Lateness {
	for i, n := range other.counts {
		l.counts[i] += n
	}
	return l
}

// Since returns the deliveries that were counted after an earlier reading. A bucket that has fewer
// than then, because the group was made anew, is empty.
func (l Lateness) Since(earlier Lateness) Lateness {
	for i, n := range earlier.counts {
		l.counts[i] = max(l.counts[i]-n, 0)
	}
	return l
}

type latenessJSON struct {
	AtMost string `json:"at_most"`
	Count  int    `json:"count"`
}

// MarshalJSON returns a list of the buckets that are not empty, ascending, such as
// [{"at_most":"5ms","count":12},{"at_most":"","count":1}]. The last bucket has no bound.
func (l Lateness) MarshalJSON() ([]byte, error) {
	list := []latenessJSON{}
	for _, b := range l.Buckets() {
		if b.Count == 0 {
			continue
		}
		atMost := ""
		if b.AtMost < math.MaxInt64 {
			atMost = b.AtMost.String()
		}
		list = append(list, latenessJSON{atMost, b.Count})
	}
	return json.Marshal(list)
}

// UnmarshalJSON reads what MarshalJSON has written. A bucket of another version, whose bound this
// one lacks, counts in that with the next higher bound. The error names a bound that cannot be
// read.
func (l *Lateness) UnmarshalJSON(text []byte) error {
	var list []latenessJSON
	if err := json.Unmarshal(text, &list); err != nil || list == nil {
		return err
	}
	*l = Lateness{}
	for _, b := range list {
		atMost := time.Duration(math.MaxInt64)
		if b.AtMost != "" {
			var err error
			if atMost, err = time.ParseDuration(b.AtMost); err != nil {
				return fmt.Errorf("at_most: %w", err)
			}
		}
		l.Add(atMost, b.Count)
	}
	return nil
}
