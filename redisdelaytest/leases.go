package redisdelaytest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// ExpireLeases ends all leases of a topic now, as if the processes that hold its messages had
// crashed. When it returns, the messages are ready again, and their consumers are woken. The
// contexts of the lost deliveries have ended, with redisdelay.ErrLeaseLost as the cause. Any
// subscription of the group may get the messages next, even the same one. ExpireLeases fails if the
// topic does not exist.
func (s *Server) ExpireLeases(topic string) {
	ctx := context.Background()
	t := s.topic(s.prefix, topic)
	err := s.endLeases(ctx, t)
	if err == nil {
		err = s.settle(ctx, t)
	}
	if err == nil {
		_, err = s.lookAll(0, false)
	}
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: expire leases of topic %q: %w", topic, err))
	}
}

// moveLeases adds d to the deadlines up to upTo that count in real time: of leases, of waiting and
// resting subscriptions, of standbys and active ones, of unused groups, and of occurrences in hand.
func (s *Server) moveLeases(ctx context.Context, t topic, d time.Duration, upTo float64) error {
	groups, err := t.Groups(ctx)
	if err != nil {
		return err
	}
	keys := []string{t.keys.Idle(), t.keys.Programs()}
	for _, g := range groups.Names {
		keys = append(keys, t.keys.Unack(g), t.keys.Waiters(g), t.keys.Resting(g), t.keys.Standby(g))
	}
	for _, key := range keys {
		if err := s.moveScores(ctx, key, upTo, func(redis.Z) float64 { return float64(d.Milliseconds()) }); err != nil {
			return err
		}
	}
	if err := s.moveActive(ctx, t, d, upTo); err != nil {
		return err
	}
	return s.moveHandlings(ctx, t, d, upTo)
}

// moveActive adds d to the deadlines up to upTo of active subscriptions.
func (s *Server) moveActive(ctx context.Context, t topic, d time.Duration, upTo float64) error {
	if !s.mini.Exists(t.keys.Active()) {
		return nil
	}
	return s.atomically(ctx, t.keys.Active(), func(tx *redis.Tx, p redis.Pipeliner) error {
		active, err := tx.HGetAll(ctx, t.keys.Active()).Result()
		for group, text := range active {
			part := strings.Fields(text)
			if ends, err := strconv.ParseFloat(part[2], 64); err == nil && ends > 0 && ends <= upTo {
				part[2] = strconv.FormatInt(int64(ends)+d.Milliseconds(), 10)
				p.HSet(ctx, t.keys.Active(), group, strings.Join(part, " "))
			}
		}
		return err
	})
}

// moveHandlings adds d to the deadlines up to upTo of occurrences that periodic.Overlap has found
// in hand, and of those that come next.
func (s *Server) moveHandlings(ctx context.Context, t topic, d time.Duration, upTo float64) error {
	for _, key := range s.mini.Keys() {
		if !strings.HasPrefix(key, t.keys.Handlings()) {
			continue
		}
		err := s.atomically(ctx, key, func(tx *redis.Tx, p redis.Pipeliner) error {
			held, err := tx.Get(ctx, key).Result()
			if err == redis.Nil {
				return nil
			}
			if moved, is := queue.MoveHandling(held, d, upTo); is {
				p.Set(ctx, key, moved, redis.KeepTTL)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// atomically changes a key by what it holds.
func (s *Server) atomically(ctx context.Context, key string, change func(*redis.Tx, redis.Pipeliner) error) error {
	for {
		err := s.Client().Watch(ctx, func(tx *redis.Tx) error {
			_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return change(tx, p) })
			return err
		}, key)
		if err != redis.TxFailedErr { // else a script came between
			return err
		}
	}
}

// endLeases moves the deadlines of all leases into the past, and keeps their order.
func (s *Server) endLeases(ctx context.Context, t topic) error {
	groups, err := t.Existing(ctx)
	if err != nil {
		return err
	}
	now := float64(s.Now().UnixMilli())
	for _, g := range groups.Names {
		if err := s.moveScores(ctx, t.keys.Unack(g), math.Inf(1), func(last redis.Z) float64 { return now - 1 - last.Score }); err != nil {
			return err
		}
	}
	return nil
}

// moveScores adds an amount to all scores of a sorted set that are at most upTo. by returns the
// amount for the highest member. A score of 0 is not a time but marks a group that is being
// removed. The end of a takeover window is in its name, so its score stays.
func (s *Server) moveScores(ctx context.Context, key string, upTo float64, by func(last redis.Z) float64) error {
	if !s.mini.Exists(key) {
		return nil
	}
	members, err := s.Client().ZRangeWithScores(ctx, key, 0, -1).Result()
	if err != nil || len(members) == 0 {
		return err
	}
	move := by(members[len(members)-1])
	members = slices.DeleteFunc(members, func(m redis.Z) bool {
		name, _ := m.Member.(string)
		return m.Score == 0 || m.Score > upTo || queue.IsWindow(name)
	})
	if len(members) == 0 {
		return nil
	}
	for i := range members {
		members[i].Score += move
	}
	return s.Client().ZAddXX(ctx, key, members...).Err() // only members that still exist
}
