package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// nobody is the ID of an entry of ready that is void. A claim drops it.
var nobody = strings.Repeat("0", queue.IDLength)

// repetition is a message that was seen twice in one list of ready, with the places from the right
// end. New entries move all others, so both places may be of one entry.
type repetition struct {
	id            string
	first, second int
}

// slack is how many places an entry may have moved since it was seen, and still be found.
const slack = 1000

// repeated reports the messages that are in a list of ready twice. It reads again around the
// places, in one step.
func (a *audit) repeated(ctx context.Context, group int, all []repetition) error {
	for some := range slices.Chunk(all, 100) {
		name := a.all[group]
		places, err := a.around(ctx, a.topic.Keys().Ready(name), some)
		if err != nil {
			return err
		}
		for _, r := range some {
			at := places[r.id]
			for i := 1; i < len(at); i++ { // one entry is right, each other one is a violation
				a.report(Violation{Fault: FaultRepeated, Group: name, ID: r.id, name: strconv.Itoa(i),
					first: at[i-1], second: at[i],
					Detail: fmt.Sprintf("it is ready %d times at least", len(at))})
			}
		}
	}
	return nil
}

// around returns the places of all messages in the parts of a list around some places, in ascending
// order.
func (a *audit) around(ctx context.Context, key string, some []repetition) (map[string][]int, error) {
	type span struct{ from, to int }
	var spans []span
	for _, r := range some {
		spans = append(spans, span{r.first, r.first + slack}, span{r.second, r.second + slack})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	merged := spans[:1]
	for _, s := range spans[1:] {
		if last := &merged[len(merged)-1]; s.from <= last.to+1 {
			last.to = max(last.to, s.to)
		} else {
			merged = append(merged, s)
		}
	}
	d := a.topic.Draft(&queue.RangesScript, queue.Target{}, "key", key)
	for _, s := range merged {
		d.Each("part", "first", -1-s.to, "last", -1-s.from)
	}
	parts, err := run(ctx, a.topic, (*redis.Cmd).Slice, d.Call())
	if err != nil {
		return nil, err
	}
	if len(parts) != len(merged) {
		return nil, fmt.Errorf("ranges: unexpected reply of %d parts about %d", len(parts), len(merged))
	}
	places := map[string][]int{}
	for i, s := range merged {
		entries, _ := parts[i].([]any)
		for j := len(entries) - 1; j >= 0; j-- {
			id := queue.Text(entries[j])
			id = id[:min(queue.IDLength, len(id))]
			places[id] = append(places[id], s.from+len(entries)-1-j)
		}
	}
	return places, nil
}
