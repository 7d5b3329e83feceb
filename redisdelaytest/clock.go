package redisdelaytest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Now returns the time of the server's clock.
func (s *Server) Now() time.Time {
	now, err := s.Client().Time(context.Background()).Result()
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: %w", err))
	}
	return now
}

// Advance moves the clock forward by d, rounded up to the millisecond, in one step. When it
// returns:
//
//   - All messages that became due are ready, in order, and their consumers are woken. In a topic
//     without a consumer group they stay scheduled until there is one, for example by
//     redisdelay.Subscriber.SubscribeInitialize.
//   - Dead letters past their retention are removed.
//   - Pauses whose time is over have ended.
//   - Messages that have expired are not delivered, even if they were ready or claimed before.
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
// returns it. If there is none, it does nothing and returns false.
func (s *Server) AdvanceToNext() (time.Time, bool) {
	topics, err := s.topics(context.Background())
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: %w", err))
	}
	var next time.Time
	now := s.Now()
	for _, t := range topics {
		due, err := s.nextDue(context.Background(), t, now)
		if err != nil {
			s.fail(fmt.Errorf("redisdelaytest: topic %q: %w", t.Name, err))
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	if next.IsZero() {
		return next, false
	}
	s.Advance(next.Sub(now))
	return next, true
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

func (s *Server) advance(ctx context.Context, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("the clock cannot go back")
	}
	if whole := d.Truncate(time.Millisecond); whole < d {
		d = whole + time.Millisecond
	}
	topics, err := s.topics(ctx)
	if err != nil {
		return err
	}
	if err := s.moveClock(ctx, topics, d); err != nil {
		return err
	}
	for _, t := range topics {
		if err := s.settle(ctx, t); err != nil {
			return err
		}
	}
	return s.wakeAll()
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

// awaitMove delays scripts that end leases and groups while the clock moves. Otherwise a scheduler
// could end those that have not been moved yet. A script that passed here before the move began may
// still run in it.
func (s *Server) awaitMove(_ *server.Peer, command string, args ...string) bool {
	if (command == "EVALSHA" || command == "EVAL") && len(args) > 0 {
		switch queue.ScriptName(args[0]) {
		case "expire", "remove", "succeed":
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
		call := t.PromoteCall(groups, cmp.Or(holder, own), time.Minute)
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
		if turn.Wait != 0 {
			return queue.Do(ctx, s.client, t.ResignCall(own))
		}
	}
}

// anyMailbox is a pattern for the mailboxes of all prefixes. The token keeps it from matching
// channels of the program with similar names.
var anyMailbox = queue.MailboxChannel("*", strings.Repeat("[0-9A-Z]", len(queue.Token())))

// wakeAll wakes every process, because their timers use other clocks, and waits until all have
// answered. Then their subscriptions have claimed the ready messages, and deliver no expired ones.
func (s *Server) wakeAll() error {
	mailboxes := s.mini.PubSubChannels(anyMailbox)
	if len(mailboxes) == 0 {
		return nil
	}
	asked := map[string]string{} // mailbox by the channel of its answer
	var answers []string
	for i, mailbox := range mailboxes {
		answers = append(answers, fmt.Sprintf("%s:looked:%s:%d", s.prefix, queue.Token(), i))
		asked[answers[i]] = mailbox
	}
	listener := s.Client().Subscribe(context.Background(), answers...)
	defer listener.Close()
	for range answers {
		if _, err := listener.Receive(context.Background()); err != nil {
			return err
		}
	}
	for answer, mailbox := range asked {
		if s.mini.Publish(mailbox, "* "+answer) == 0 {
			delete(asked, answer)
		}
	}
	timeout, tick := time.NewTimer(awaitTimeout), time.NewTicker(10*time.Millisecond)
	defer timeout.Stop()
	defer tick.Stop()
	for len(asked) > 0 {
		select {
		case answer := <-listener.Channel():
			delete(asked, answer.Channel)
		case <-tick.C:
			// A mailbox that was closed before it answered will never answer.
			open := s.mini.PubSubChannels(anyMailbox)
			maps.DeleteFunc(asked, func(_, mailbox string) bool { return !slices.Contains(open, mailbox) })
		case <-timeout.C:
			return fmt.Errorf("%d processes have not answered within %v", len(asked), awaitTimeout)
		}
	}
	return nil
}
