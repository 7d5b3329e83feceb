package redisdelaytest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/wake"
)

// Now returns the time of the server's clock.
func (s *Server) Now() time.Time {
	now, err := s.Client().Time(context.Background()).Result()
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: %w", err))
	}
	return now
}

// Advance moves the clock forward by d, rounded up to the millisecond. When it returns:
//
//   - All messages that became due are ready, in order, and their consumers are woken. In a topic
//     without a consumer group they stay scheduled until there is one, for example by
//     redisdelay.Subscriber.SubscribeInitialize.
//   - Dead letters past their retention are removed.
//   - Pauses whose time is over have ended.
//   - Messages that have expired are not delivered, even if they were ready or claimed before.
//   - Schedules of package periodic have published all occurrences that they publish by now.
//
// The clock moves in one step if no periodic.Periodic runs. Else it stops whenever a schedule has
// to publish, until it has done so. So a year of a nightly schedule has all its nights, and none is
// missed. Advance waits for Message of a schedule. If one has not returned after ten seconds, it
// fails the test. A pause after a failed Message passes with the clock.
//
// Only programs in this process are waited for. Others are woken.
//
// Only this clock expires messages, so a slow part of the test expires none. However, a Subscriber
// does not deliver a message that expires within the time of a call to Redis, some milliseconds on
// a busy machine. So leave messages a second.
//
// Advance expires no leases, because handlers run in real time: see ExpireLeases. It ends no group
// by GroupExpiry or BroadcastExpiry: use admin.Admin.DeleteGroup. A delay that a handler sets
// counts from the clock's time at that moment. To see such messages at their due times, move the
// clock in steps, or with AdvanceToNext.
func (s *Server) Advance(d time.Duration) {
	if err := s.advance(context.Background(), d); err != nil {
		s.fail(fmt.Errorf("redisdelaytest: advance by %v: %w", d, err))
	}
}

// AdvanceToNext advances the clock to the next due time of a message or retry in any topic, and
// returns it. Before that, it waits until schedules have published what they publish by now. If
// there is no such message, it does nothing and returns false.
func (s *Server) AdvanceToNext() (time.Time, bool) {
	next, err := s.walk(context.Background(), s.earliest)
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: %w", err))
	}
	return next, !next.IsZero()
}

func (s *Server) advance(ctx context.Context, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("the clock cannot go back")
	}
	end := s.Now().Add(wholeMillis(d))
	_, err := s.walk(ctx, func(context.Context, []topic, time.Time) (time.Time, error) { return end, nil })
	return err
}

// wholeMillis rounds up to the millisecond.
func wholeMillis(d time.Duration) time.Duration {
	if whole := d.Truncate(time.Millisecond); whole < d {
		return whole + time.Millisecond
	}
	return d
}

// walk moves the clock to a target, and returns it. It stops at each time before at which a program
// has something to do. At each stop it asks for the target anew. If that is zero, walk ends there.
func (s *Server) walk(ctx context.Context, target func(context.Context, []topic, time.Time) (time.Time, error)) (reached time.Time, err error) {
	next, err := s.lookAll(0, true)
	for err == nil {
		var topics []topic
		if topics, err = s.topics(ctx); err != nil {
			break
		}
		now, to := s.Now(), time.Time{}
		if to, err = target(ctx, topics, now); err != nil || to.IsZero() {
			break
		}
		at, passing := to, false
		if next.After(now) && next.Before(to) {
			at, passing = now.Add(wholeMillis(next.Sub(now))), true
		}
		if err = s.move(ctx, topics, at.Sub(now)); err == nil {
			next, err = s.lookAll(at.Sub(now), passing)
		}
		if !passing {
			return to, err
		}
	}
	return time.Time{}, err
}

// move moves the clock by d, and does the due-time work of the topics.
func (s *Server) move(ctx context.Context, topics []topic, d time.Duration) error {
	if err := s.moveClock(ctx, topics, d); err != nil {
		return err
	}
	for _, t := range topics {
		if err := s.settle(ctx, t); err != nil {
			return fmt.Errorf("topic %q: %w", t.Name, err)
		}
	}
	return nil
}

// earliest returns the next due time after now of a message or retry in any topic, or zero.
func (s *Server) earliest(ctx context.Context, topics []topic, now time.Time) (next time.Time, err error) {
	for _, t := range topics {
		due, err := s.nextDue(ctx, t, now)
		if err != nil {
			return next, fmt.Errorf("topic %q: %w", t.Name, err)
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	return next, nil
}

// nextDue returns the next due time after now of a message or retry of a topic, or zero if there is
// none. Overdue messages, which stay waiting in a topic without groups, are ignored.
func (s *Server) nextDue(ctx context.Context, t topic, now time.Time) (next time.Time, err error) {
	groups, err := t.Groups(ctx)
	if err != nil {
		return next, err
	}
	keys := []string{t.keys.Pending()}
	for _, g := range groups.Names {
		keys = append(keys, t.keys.Retry(g))
	}
	later := &redis.ZRangeBy{Min: fmt.Sprintf("(%d", now.UnixMilli()), Max: "+inf", Count: 1}
	for _, key := range keys {
		found, err := s.Client().ZRangeByScoreWithScores(ctx, key, later).Result()
		if err != nil {
			return next, err
		}
		for _, z := range found {
			if due := time.UnixMilli(int64(z.Score)); next.IsZero() || due.Before(next) {
				next = due
			}
		}
	}
	return next, nil
}

// moveClock moves the clock forward, and all leases by the same time.
func (s *Server) moveClock(ctx context.Context, topics []topic, d time.Duration) error {
	s.moving.Lock()
	defer s.moving.Unlock()
	for _, t := range topics {
		if err := s.moveLeases(ctx, t, d, math.Inf(1)); err != nil {
			return err
		}
	}
	now := s.Now().Add(d)
	s.mini.SetTime(now)
	for _, t := range topics {
		// Leases of claims between the two steps would have expired.
		if err := s.moveLeases(ctx, t, d, float64(now.UnixMilli())); err != nil {
			return err
		}
	}
	return nil
}

// awaitMove delays scripts that end leases and groups while the clock moves, and those by which
// occurrences begin. Otherwise they could find leases ended that have not been moved yet. A script
// that passed here before the move began may still run in it.
func (s *Server) awaitMove(_ *server.Peer, command string, args ...string) bool {
	if (command == "EVALSHA" || command == "EVAL") && len(args) > 0 {
		switch queue.ScriptName(args[0]) {
		case "expire", "remove", "succeed", "overlap":
			s.moving.RLock()
			defer s.moving.RUnlock()
		}
	}
	return false // run the command
}

// settle promotes the due messages of a topic and does the other work of its scheduler, as the
// holder.
func (s *Server) settle(ctx context.Context, t topic) error {
	const own = "redisdelaytest|0"
	for {
		groups, err := t.Groups(ctx)
		if err != nil {
			return err
		}
		holder, err := s.Client().HGet(ctx, t.keys.Scheduler(), "holder").Result()
		if err != nil && err != redis.Nil {
			return err
		}
		call := t.PromoteCall(groups, cmp.Or(holder, own), time.Minute, true)
		if err := queue.Do(ctx, s.client, call); err != nil {
			return err
		}
		turn, stale, err := t.ReadTurn(call, groups)
		if err != nil {
			return err
		}
		if stale || turn.Role != queue.Holder {
			continue // another scheduler was faster
		}
		if turn.Resume {
			_, _, err = t.EndPauses(ctx)
		}
		if err == nil && turn.Expired {
			_, err = t.Expire(ctx)
		}
		if err == nil && len(turn.Failed) > 0 {
			_, err = t.Succeed(ctx, turn.Failed...)
		}
		if err == nil && turn.Purge {
			_, _, err = t.Purge(ctx)
		}
		if err == nil && len(turn.Unused) > 0 {
			_, err = t.RemoveUnused(ctx, turn.Unused...)
		}
		if err != nil {
			return err
		}
		switch {
		case turn.Wait == 0: // there is more to do
		case cmp.Or(holder, own) == own:
			return queue.Do(ctx, s.client, t.ResignCall(own))
		default:
			return nil
		}
	}
}

// anyMailbox is a pattern for the mailboxes of all prefixes. The token keeps it from matching
// channels of the program with similar names.
var anyMailbox = queue.MailboxChannel("*", strings.Repeat("[0-9A-Z]", len(queue.Token())))

// mostLooks is how often lookAll has all programs look at one time.
const mostLooks = 100

// lookAll has every program of the process look at the time, after it was moved by d, because
// their timers use other clocks. It waits until all have settled. Then subscriptions have claimed
// the ready messages and deliver no expired ones, and schedules have published. It returns the
// next time at which a schedule acts by itself, or zero. It also wakes other processes, but does
// not wait for them. If passing, the clock is about to be moved on, and only schedules have to
// look.
func (s *Server) lookAll(d time.Duration, passing bool) (next time.Time, err error) {
	for range mostLooks { // one program may ask another
		ctx, cancel := context.WithTimeout(context.Background(), s.patience)
		var others []string
		next, others, err = wake.Settle(ctx, wake.Clock{Addr: s.Addr(), Channels: s.mini.PubSubChannels(anyMailbox), Moved: d, Passing: passing})
		cancel()
		for _, mailbox := range others {
			s.mini.Publish(mailbox, "*")
		}
		if err != nil {
			return next, fmt.Errorf("programs have not settled within %v: %w", s.patience, err)
		}
		if next.IsZero() || next.After(s.Now()) {
			break
		}
		d, passing = 0, true
	}
	return next, nil
}
