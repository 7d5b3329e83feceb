package operate

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

const (
	// MemorySamples is how many entries of a key MEMORY USAGE looks at.
	MemorySamples = 50
	// bodySamples is of how many messages of a topic Memory reads the length, about.
	bodySamples = 200
	// entryBytes is about what an entry of a hash takes besides its body.
	entryBytes = 100
)

// Memory is about how many bytes a topic takes in Redis, by the state of its messages.
type Memory struct {
	ByState map[string]int // by Waiting, Ready and so on
	Other   int            // of no message, such as delay IDs and workers
}

// BodiesOf returns about how many bytes the bodies of topics take, in pipelines. It returns an
// error if the server does not answer, or does not say. The bodies of a node of a Cluster that does
// not answer count as none.
func BodiesOf(ctx context.Context, topics []*Topic) ([]int, error) {
	sizes := make([]int, len(topics))
	if len(topics) == 0 {
		return sizes, nil
	}
	type place struct {
		at    int
		topic *Topic
	}
	var all []place
	for i, t := range topics {
		all = append(all, place{i, t})
	}
	client := topics[0].Client()
	for _, its := range servers.PerNode(ctx, client, all, func(p place) string { return p.topic.Key() }) {
		for some := range slices.Chunk(its, 500) {
			var keys []string
			for _, p := range some {
				keys = append(keys, p.topic.Keys().Messages())
			}
			found, err := usage(ctx, client, keys)
			if errors.Is(err, refusal.ErrForbidden) || ends(ctx, client, err) {
				return nil, err
			}
			for i := range found {
				sizes[some[i].at] = found[i]
			}
		}
	}
	return sizes, nil
}

// usage returns about how many bytes keys of one node take, 0 for one that does not exist.
func usage(ctx context.Context, client *servers.Client, keys []string) ([]int, error) {
	sizes := make([]int, len(keys))
	for sampled := true; ; sampled = false {
		asked, err := servers.AskKey(ctx, client, keys[0], func(ctx context.Context, c redis.UniversalClient) ([]*redis.IntCmd, error) {
			p := c.Pipeline()
			asked := make([]*redis.IntCmd, len(keys))
			for i, key := range keys {
				if sampled {
					asked[i] = p.MemoryUsage(ctx, key, MemorySamples)
				} else {
					asked[i] = p.MemoryUsage(ctx, key)
				}
			}
			_, err := p.Exec(ctx)
			if errors.Is(err, redis.Nil) {
				err = nil
			}
			return asked, err
		})
		if sampled && err != nil && strings.Contains(err.Error(), "syntax error") {
			continue // the server of redisdelaytest knows no samples
		}
		if err != nil {
			return nil, refusal.To("ask how much memory keys take", "memory|usage", err)
		}
		for i := range asked {
			if asked[i].Err() == nil {
				sizes[i] = int(asked[i].Val())
			}
		}
		return sizes, nil
	}
}

// held is how many messages are in a state of a group, in a key.
type held struct {
	state, key string
	list       bool
	count      int
	mean       int // bytes of a body, as sampled
}

// Memory returns about how many bytes the topic takes. It needs its counts. The cost does not grow
// with the number of messages, but with the number of groups.
func (t *Topic) Memory(ctx context.Context, counts Counts) (Memory, error) {
	k := t.Keys()
	var names, records []string
	shared := []string{k.Messages(), k.Options(), k.Refs()}
	of := map[string]string{k.Pending(): Waiting} // the states of keys
	places := []held{{Waiting, k.Pending(), false, counts.Number("waiting"), 0}}
	retrying, dead := 0, 0
	for _, g := range counts.Groups {
		names, records = append(names, g.Name), append(records, k.Deliveries(g.Name))
		of[k.Ready(g.Name)], of[k.Unack(g.Name)], of[k.Leases(g.Name)] = Ready, InHand, InHand
		of[k.Retry(g.Name)], of[k.Dead(g.Name)] = Retrying, Dead
		places = append(places, held{Ready, k.Ready(g.Name), true, g.Number("ready"), 0}, held{InHand, k.Unack(g.Name), false, g.Number("in_hand"), 0},
			held{Retrying, k.Retry(g.Name), false, g.Number("retrying"), 0}, held{Dead, k.Dead(g.Name), false, g.Number("dead"), 0})
		retrying, dead = retrying+g.Number("retrying"), dead+g.Number("dead")
	}
	places = slices.DeleteFunc(places, func(p held) bool { return p.count == 0 })
	m := Memory{ByState: map[string]int{}}
	bodies := 0
	for keys := range slices.Chunk(k.All(names), 500) {
		sizes, err := usage(ctx, t.Client(), keys)
		if err != nil {
			return m, err
		}
		for i, key := range keys {
			switch state := of[key]; {
			case state != "":
				m.ByState[state] += sizes[i]
			case slices.Contains(shared, key):
				bodies += sizes[i]
			case slices.Contains(records, key) && retrying+dead > 0:
				m.ByState[Retrying] += sizes[i] * retrying / (retrying + dead)
				m.ByState[Dead] += sizes[i] * dead / (retrying + dead)
			default:
				m.Other += sizes[i]
			}
		}
	}
	if err := t.sampleBodies(ctx, places); err != nil {
		return m, err
	}
	whole := 0.0
	for _, p := range places {
		whole += float64(p.count) * float64(p.mean+entryBytes)
	}
	if whole == 0 {
		m.Other += bodies
		return m, nil
	}
	for _, p := range places {
		m.ByState[p.state] += int(float64(bodies) * float64(p.count) * float64(p.mean+entryBytes) / whole)
	}
	return m, nil
}

// sampleBodies finds the mean length of the bodies in each place, by messages at even distances.
func (t *Topic) sampleBodies(ctx context.Context, places []held) error {
	if len(places) == 0 {
		return nil
	}
	each := max(1, bodySamples/len(places))
	_, err := servers.AskKey(ctx, t.Client(), t.Key(), func(ctx context.Context, c redis.UniversalClient) (bool, error) {
		for some := range slices.Chunk(places, bodySamples) {
			ids := make([][]*redis.StringSliceCmd, len(some))
			_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i, at := range some {
					n := min(each, at.count)
					for s := range n {
						rank := int64(s) * int64(at.count) / int64(n)
						if at.list {
							ids[i] = append(ids[i], p.LRange(ctx, at.key, rank, rank))
						} else {
							ids[i] = append(ids[i], p.ZRange(ctx, at.key, rank, rank))
						}
					}
				}
				return nil
			})
			if err != nil {
				return false, err
			}
			lengths := make([][]*redis.Cmd, len(some))
			_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
				for i := range some {
					for _, id := range ids[i] {
						if found := id.Val(); len(found) == 1 {
							lengths[i] = append(lengths[i], p.Do(ctx, "hstrlen", t.Keys().Messages(), found[0][:min(len(found[0]), queue.IDLength)]))
						}
					}
				}
				return nil
			})
			if err != nil {
				return false, err
			}
			for i := range some {
				sum := 0
				for _, length := range lengths[i] {
					n, _ := length.Int()
					sum += n
				}
				some[i].mean = sum / max(1, len(lengths[i]))
			}
		}
		return true, nil
	})
	return refusal.To("read how long messages are", "hstrlen", err)
}
