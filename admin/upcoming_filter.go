package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"time"
)

// DefaultMostUpcoming is the default of Load.Most.
const DefaultMostUpcoming = 100_000

// isZero tells whether the filter chooses all messages.
func (f Filter) isZero() bool { return reflect.ValueOf(f).IsZero() }

// chosen counts the messages of a plain topic that the filter of a load chooses, in intervals that
// were counted. left is how many messages may be read. It reads from the beginning of the first
// interval on, and returns the intervals that it could finish.
func (a *Admin) chosen(ctx context.Context, topic string, load Load, counted []Bucket, left *int) ([]Bucket, error) {
	buckets := make([]Bucket, len(counted))
	for i, b := range counted {
		buckets[i] = Bucket{From: b.From, Until: b.Until}
	}
	for _, state := range []State{Waiting, Retrying} {
		ended, err := a.chosenIn(ctx, topic, state, load, buckets, left)
		switch {
		case state == Retrying && errors.Is(err, ErrNotFound): // the topic has no such group
		case err != nil:
			return nil, err
		}
		if !ended.IsZero() {
			n := sort.Search(len(buckets), func(i int) bool { return buckets[i].Until.After(ended) })
			buckets = buckets[:n]
		}
	}
	return buckets, nil
}

// chosenIn counts messages of one state. ended is up to when all are counted, zero if all are.
func (a *Admin) chosenIn(ctx context.Context, topic string, state State, load Load, buckets []Bucket, left *int) (ended time.Time, err error) {
	if len(buckets) == 0 {
		return ended, nil
	}
	first, end := buckets[0].From, buckets[len(buckets)-1].Until
	// A page begins after a message: here after any of the millisecond before.
	q := Query{State: state, Group: load.Group, Filter: load.Filter, Limit: 1000, Cursor: fmt.Sprintf("%d:%s", first.UnixMilli()-1, latestID)}
	last := first
	for {
		q.Limit = min(q.Limit, *left)
		if q.Limit <= 0 {
			return last, nil
		}
		page, err := a.page(ctx, topic, topic, q)
		if err != nil {
			return ended, err
		}
		for _, m := range page.Messages {
			i := sort.Search(len(buckets), func(i int) bool { return buckets[i].Until.After(m.Places[0].At) })
			switch {
			case i == len(buckets):
			case state == Waiting:
				buckets[i].Waiting++
			default:
				buckets[i].Retrying++
			}
		}
		if page.Next == "" {
			return ended, nil
		}
		*left -= q.Limit
		if last = cursorTime(page.Next); !last.Before(end) {
			return ended, nil
		}
		q.Cursor = page.Next
	}
}

// latestID is after all IDs of messages.
const latestID = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"

// cursorTime returns the time of the last message of a page, as its cursor has it.
func cursorTime(cursor string) time.Time {
	var ms float64
	_, _ = fmt.Sscanf(cursor, "%g:", &ms)
	return time.UnixMilli(int64(ms))
}

// most returns how many messages a load may read.
func (l Load) most() int { return cmp.Or(max(l.Most, 0), DefaultMostUpcoming) }
