package operate

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

const (
	// together is how many topics one pipeline of StatsOf is about at most.
	together = 100
	// groupsTogether is how many groups one step of StatsOf counts at most. That takes the server
	// about a millisecond.
	groupsTogether = 100
)

// StatsOf reads the counts of many topics, in pipelines. The groups of a topic with more than a
// hundred are counted in several steps, so not all at one time. It returns an error if the server
// does not answer. If a node of a Cluster does not answer, its topics have that error.
func StatsOf(ctx context.Context, topics []*Topic) ([]Counts, error) {
	all := make([]Counts, 0, len(topics))
	for some := range slices.Chunk(topics, together) {
		counted, err := statsOf(ctx, some)
		if err != nil {
			return nil, err
		}
		all = append(all, counted...)
	}
	return all, nil
}

// statsOf counts with the sets of groups that the topics remember, and reads the others. It counts
// those again whose set was stale.
func statsOf(ctx context.Context, topics []*Topic) ([]Counts, error) {
	counted, left := make([]Counts, len(topics)), make([]int, len(topics))
	for i := range topics {
		left[i] = i
	}
	for range 2 {
		groups, err := groupsOf(ctx, topics, left, counted)
		if err == nil {
			err = countWith(ctx, topics, groups, counted)
		}
		if err != nil {
			return nil, err
		}
		left = slices.DeleteFunc(left, func(i int) bool { return !errors.Is(counted[i].Err, queue.ErrStale) })
		for _, i := range left {
			topics[i].Forget(groups[i])
		}
	}
	for _, i := range left { // their groups change all the time
		counted[i], counted[i].Err = topics[i].Stats(ctx)
	}
	return counted, ctx.Err()
}

// groupsOf returns the sets of groups of some topics, by the topic's place. What it says about a
// topic is in counted: nothing, or why there is no set.
func groupsOf(ctx context.Context, topics []*Topic, some []int, counted []Counts) (map[int]*queue.Groups, error) {
	groups, looks := make(map[int]*queue.Groups, len(some)), map[int]*queue.Call{}
	for _, i := range some {
		counted[i] = Counts{}
		if groups[i] = topics[i].Remembered(); groups[i] == nil {
			looks[i] = topics[i].LookCall()
		}
	}
	if len(looks) == 0 {
		return groups, nil
	}
	client := topics[0].Client()
	if err := queue.Do(ctx, client, slices.Collect(maps.Values(looks))...); ends(ctx, client, err) {
		return nil, err
	}
	for i, look := range looks {
		err := look.Failure()
		if err == nil {
			groups[i], err = topics[i].ReadLook(look)
		}
		if counted[i].Err = err; err != nil {
			delete(groups, i)
		}
	}
	return groups, nil
}

// countWith counts topics with these groups, by the topic's place.
func countWith(ctx context.Context, topics []*Topic, groups map[int]*queue.Groups, counted []Counts) error {
	type part struct {
		topic  int
		groups *queue.Groups
	}
	var parts []part
	var calls []*queue.Call
	for i, all := range groups {
		for first := 0; first == 0 || first < len(all.Names); first += groupsTogether {
			some := *all
			some.Names = all.Names[first:min(first+groupsTogether, len(all.Names))]
			parts, calls = append(parts, part{i, &some}), append(calls, topics[i].statsCall(&some))
		}
	}
	if len(calls) == 0 {
		return nil
	}
	client := topics[0].Client()
	if err := queue.Do(ctx, client, calls...); ends(ctx, client, err) {
		return err
	}
	for i, p := range parts {
		to := &counted[p.topic]
		if to.Err != nil {
			continue
		}
		some, err := Counts{}, calls[i].Failure()
		if err == nil {
			var reply []any
			if reply, err = calls[i].Cmd().Slice(); err == nil {
				some, err = ReadCounts(reply, p.groups)
			}
		}
		some.Groups, some.Err = append(to.Groups, some.Groups...), err
		*to = some
	}
	return nil
}

// ends tells whether an error of a call ends work on many topics, because the next call would not
// be answered either.
func ends(ctx context.Context, client *servers.Client, err error) bool {
	return err != nil && (ctx.Err() != nil || servers.Unreachable(err) && !client.Cluster())
}
