package operate

import (
	"context"
	"errors"
	"slices"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

const (
	// together is how many topics one pipeline of StatsOf is about at most.
	together = 100
	// groupsTogether is how many groups one step of StatsOf counts at most. That takes the server
	// about a millisecond.
	groupsTogether = 100
)

// Counted is the content of a topic, or the reason why it could not be read.
type Counted struct {
	Stats
	Err error
}

// StatsOf reads the counts of many topics, in pipelines. The groups of a topic with more than a
// hundred are counted in several steps, so not all at one time. It returns an error if the server
// does not answer. If a node of a Cluster does not answer, its topics have that error.
func StatsOf(ctx context.Context, topics []*Topic) ([]Counted, error) {
	all := make([]Counted, 0, len(topics))
	for some := range slices.Chunk(topics, together) {
		counted, err := statsOf(ctx, some)
		if err != nil {
			return nil, err
		}
		all = append(all, counted...)
	}
	return all, nil
}

func statsOf(ctx context.Context, topics []*Topic) ([]Counted, error) {
	client := topics[0].Client()
	counted := make([]Counted, len(topics))
	looks := make([]*queue.Call, len(topics))
	for i, t := range topics {
		looks[i] = t.LookCall()
	}
	if err := queue.Do(ctx, client, looks...); ends(ctx, client, err) {
		return nil, err
	}
	type part struct {
		topic  int
		groups *queue.Groups
	}
	var parts []part
	var calls []*queue.Call
	for i, t := range topics {
		err := looks[i].Failure()
		var groups *queue.Groups
		if err == nil {
			groups, err = t.ReadLook(looks[i])
		}
		if counted[i].Err = err; err != nil {
			continue
		}
		for first := 0; first == 0 || first < len(groups.Names); first += groupsTogether {
			some := *groups
			some.Names = groups.Names[first:min(first+groupsTogether, len(groups.Names))]
			parts, calls = append(parts, part{i, &some}), append(calls, t.statsCall(&some))
		}
	}
	if len(calls) == 0 {
		return counted, nil
	}
	if err := queue.Do(ctx, client, calls...); ends(ctx, client, err) {
		return nil, err
	}
	for i, p := range parts {
		to := &counted[p.topic]
		if to.Err != nil {
			continue
		}
		stats, err := Stats{}, calls[i].Failure()
		if err == nil {
			var reply []any
			if reply, err = calls[i].Cmd().Slice(); err == nil {
				stats, err = readStats(reply, p.groups)
			}
		}
		stats.Groups = append(to.Groups, stats.Groups...)
		to.Stats, to.Err = stats, err
	}
	for i, t := range topics {
		if to := &counted[i]; errors.Is(to.Err, queue.ErrStale) {
			to.Stats, to.Err = t.Stats(ctx)
		}
	}
	return counted, ctx.Err()
}

// ends tells whether an error of a call ends work on many topics, because the next call would not
// be answered either.
func ends(ctx context.Context, client *queue.Client, err error) bool {
	return err != nil && (ctx.Err() != nil || queue.Unreachable(err) && !client.Cluster())
}
