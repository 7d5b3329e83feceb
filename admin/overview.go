package admin

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/redisdelay/watermill-redisdelay/internal/operate"
	"github.com/redisdelay/watermill-redisdelay/internal/rights"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Overview returns the Stats of about limit topics (default 100, at most 1,000), and the cursor of
// the next page, as Topics does. It needs a few round trips for each hundred topics. Each partition
// of a partitioned topic is a topic of its own here: Fold puts those of all pages together. A topic
// that cannot be read has only Topic and Err, which wraps ErrNotFound if it does not exist any
// more. Errors wrap ErrInvalidArgument for another cursor.
func (a *Admin) Overview(ctx context.Context, cursor string, limit int) (stats []Stats, next string, err error) {
	names, next, err := a.Topics(ctx, cursor, min(cmp.Or(max(limit, 0), 100), 1000))
	if err != nil {
		return nil, "", err
	}
	counted, err := a.counted(ctx, names)
	if err != nil {
		return nil, "", fmt.Errorf("overview: %w", err)
	}
	for i, name := range names {
		stats = append(stats, readStats(name, counted[i]))
	}
	return stats, next, nil
}

// counted returns the counts of each topic, or the reason why it cannot be read.
func (a *Admin) counted(ctx context.Context, names []string) ([]operate.Counts, error) {
	all := make([]operate.Counts, len(names))
	topics, of, err := a.handles(ctx, names, rights.Counting, func(i int, err error) { all[i].Err = err })
	if err != nil {
		return nil, err
	}
	a.seen.known(topics)
	counted, err := operate.StatsOf(ctx, topics)
	for i, c := range counted {
		all[of[i]] = c
	}
	return all, err
}

// maxSeen is how many topics an Admin remembers from its counts.
const maxSeen = 10_000

// seen are the topics that were counted. They remember their groups, so the next count needs one
// script for each, in place of two. If the groups have changed meanwhile, Redis says so.
type seen struct {
	mu     sync.Mutex
	topics map[string]*operate.Topic
}

// known replaces handles of topics by those that were counted before, and takes in the others.
func (s *seen) known(topics []*operate.Topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, t := range topics {
		if before := s.topics[t.Name]; before != nil {
			topics[i] = before
			continue
		}
		if s.topics == nil || len(s.topics) == maxSeen {
			s.topics = map[string]*operate.Topic{}
		}
		s.topics[t.Name] = t
	}
}

// handles returns handles of the topics for which the user may do the work, and their places in
// names. It tells refuse why the others are missing. The error ends work on many topics.
func (a *Admin) handles(ctx context.Context, names []string, work rights.Work, refuse func(i int, err error)) (topics []*operate.Topic, of []int, err error) {
	down := map[string]error{} // by node: its topics are not tried one after the other
	for i, name := range names {
		t, err := a.handle(name)
		if err == nil {
			node, _ := t.Master(ctx) // after an error the call below fails too
			if err = down[node]; err == nil {
				_, err = a.permits.Try(ctx, t.Topic, work)
			}
			if servers.Unreachable(err) {
				if !a.client.Cluster() {
					return nil, nil, err
				}
				down[node] = err
			}
		}
		if err != nil {
			refuse(i, err)
			continue
		}
		topics, of = append(topics, t), append(of, i)
	}
	return topics, of, nil
}
