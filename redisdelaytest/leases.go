package redisdelaytest

import (
	"context"
	"fmt"
	"maps"
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
	ctx, cancel := context.WithTimeout(context.Background(), s.patience)
	defer cancel()
	err := s.endLeases(ctx, s.topic(s.prefix, topic))
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
		if err := s.moveScores(ctx, key, d, upTo); err != nil {
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

// endLeases ends the leases that the groups of a topic have now. A holder may extend its lease
// after the deadline was moved into the past, so that is repeated until each of them has ended.
func (s *Server) endLeases(ctx context.Context, t topic) error {
	groups, err := t.Existing(ctx)
	if err != nil {
		return err
	}
	held := map[string]map[string]string{} // group -> id -> token
	for _, g := range groups.Names {
		if held[g], err = s.Client().HGetAll(ctx, t.keys.Leases(g)).Result(); err != nil {
			return err
		}
	}
	for left := true; left; {
		left = false
		for g, leases := range held {
			if err := s.passDeadlines(ctx, t, g, leases); err != nil {
				return err
			}
			left = left || len(leases) > 0
		}
		if err := s.settle(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// passDeadlines moves the deadlines of leases, of id and token, into the past, and keeps their
// order. It takes those out of the map that have ended.
func (s *Server) passDeadlines(ctx context.Context, t topic, group string, held map[string]string) error {
	return s.atomically(ctx, t.keys.Leases(group), func(tx *redis.Tx, p redis.Pipeliner) error {
		leases, err := tx.HGetAll(ctx, t.keys.Leases(group)).Result()
		if err != nil {
			return err
		}
		maps.DeleteFunc(held, func(id, token string) bool { return leases[id] != token })
		members, err := tx.ZRangeWithScores(ctx, t.keys.Unack(group), 0, -1).Result()
		members = slices.DeleteFunc(members, func(m redis.Z) bool {
			id, _ := m.Member.(string)
			return held[id] == ""
		})
		if err != nil || len(members) == 0 {
			return err
		}
		move := float64(s.Now().UnixMilli()-1) - members[len(members)-1].Score
		for i := range members {
			members[i].Score += move
		}
		p.ZAddXX(ctx, t.keys.Unack(group), members...)
		return nil
	})
}

// moveScores adds d to all scores of a sorted set that are at most upTo. A score of 0 is not a time
// but marks a group that is being removed. The end of a takeover window is in its name, so its
// score stays.
func (s *Server) moveScores(ctx context.Context, key string, d time.Duration, upTo float64) error {
	if !s.mini.Exists(key) {
		return nil
	}
	members, err := s.Client().ZRangeWithScores(ctx, key, 0, -1).Result()
	if err != nil {
		return err
	}
	members = slices.DeleteFunc(members, func(m redis.Z) bool {
		name, _ := m.Member.(string)
		return m.Score == 0 || m.Score > upTo || queue.IsWindow(name)
	})
	if len(members) == 0 {
		return nil
	}
	for i := range members {
		members[i].Score += float64(d.Milliseconds())
	}
	return s.Client().ZAddXX(ctx, key, members...).Err() // only members that still exist
}
