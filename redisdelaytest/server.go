package redisdelaytest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Config configures a Server. Its zero value will do for most tests.
type Config struct {
	// KeyPrefix is what the program under test uses. Default redisdelay.DefaultKeyPrefix.
	KeyPrefix string

	// Unmarshaler shows the messages of the program under test. Default redisdelay.BinaryMarshaler{}.
	Unmarshaler redisdelay.Unmarshaler

	// Now is what the server's clock shows at first. Default the present: delays that Watermill's own
	// components write are by the clock of the program.
	Now time.Time
}

// Server is a Redis server in the process, with a clock that stands still. Its methods are safe for
// concurrent use, but for those that move the clock.
//
// Methods that cannot do their work fail the test of Start; on a Server of New they panic.
type Server struct {
	mini   *miniredis.Miniredis
	client *queue.Client
	admin  *admin.Admin
	prefix string
	fail   func(error)
	leap   sync.RWMutex // while the clock and the leases are moved
}

// Start returns a server that is closed when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Config{})
}

// StartWith is Start with a configuration.
func StartWith(t testing.TB, config Config) *Server {
	t.Helper()
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	s.fail = func(err error) {
		t.Helper()
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// New returns a server for what is no test, such as an Example. It is the caller's to close.
func New(config Config) (*Server, error) {
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		return nil, fmt.Errorf("redisdelaytest: %w", err)
	}
	now := config.Now
	if now.IsZero() {
		now = time.Now()
	}
	mini.SetTime(now.Truncate(time.Millisecond))
	s := &Server{
		mini:   mini,
		client: queue.MustClient(redis.NewClient(&redis.Options{Addr: mini.Addr()})),
		prefix: cmp.Or(config.KeyPrefix, redisdelay.DefaultKeyPrefix),
		fail:   func(err error) { panic(err) },
	}
	mini.Server().SetPreHook(s.awaitLeap)
	var err error
	s.admin, err = admin.New(admin.Config{Client: s.Client(), KeyPrefix: config.KeyPrefix, Unmarshaler: config.Unmarshaler})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("redisdelaytest: %w", err)
	}
	return s, nil
}

// Close ends the server. Close what uses it first.
func (s *Server) Close() {
	_ = s.client.Close() // nothing of it matters any more
	s.mini.Close()
}

// Client is a client of the server, which closes it.
func (s *Server) Client() redis.UniversalClient { return s.client.UniversalClient }

// Addr is the server's address, for clients of the program's own.
func (s *Server) Addr() string { return s.mini.Addr() }

// Admin looks after the server's topics.
func (s *Server) Admin() *admin.Admin { return s.admin }

// Now is what the server's clock shows.
func (s *Server) Now() time.Time {
	now, err := s.client.Time(context.Background()).Result()
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: %w", err))
	}
	return now
}

// Advance moves the clock on by d, rounded up to the millisecond, in one leap. When it returns, everything that fell
// due by then is ready, in order, and its consumers are woken; dead letters past their retention are gone; and no
// consumer is offered a message any more for which it is too late by now, whether it was ready, claimed or on offer
// before. Where a topic has no consumer group, what is due stays scheduled until there is one, such as by
// redisdelay.Subscriber.SubscribeInitialize.
//
// Only this clock decides whether it is too late for a message, so that one that was in time before a slow part
// of the test is in time after it. But a Subscriber, which does not know that the clock stands still, offers no message
// that has less time left than it takes to ask for the time, which may be some milliseconds where the machine is busy:
// leave it a second. Handlers live in real time, so leases do not run out by Advance: see
// ExpireLeases. No GroupExpiry or BroadcastExpiry ever comes, either: admin.Admin.DeleteGroup removes a group. What a
// handler schedules by a delay when it gets its message counts from the time that the clock shows then; to see it at
// its own time, move the clock in steps, or by AdvanceToNext.
func (s *Server) Advance(d time.Duration) {
	if err := s.advance(context.Background(), d); err != nil {
		s.fail(fmt.Errorf("redisdelaytest: advance by %v: %w", d, err))
	}
}

// AdvanceToNext moves the clock on to the next due time of a message or retry of any topic, and returns it, as
// Advance does. It returns false, and does nothing, if none is to come.
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

// nextDue is when the next message or retry of a topic is due that is not yet; zero: none is to come. Where there is no
// group, what is overdue stays where it waited.
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
		found, err := s.client.ZRangeByScoreWithScores(ctx, key, later).Result()
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
		return fmt.Errorf("the clock does not go back")
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

// moveClock moves on the clock, and all leases with it.
func (s *Server) moveClock(ctx context.Context, topics []topic, d time.Duration) error {
	s.leap.Lock()
	defer s.leap.Unlock()
	for _, t := range topics {
		if err := s.moveLeases(ctx, t, d, math.Inf(1)); err != nil {
			return err
		}
	}
	now := s.Now().Add(d)
	s.mini.SetTime(now)
	for _, t := range topics {
		// What was claimed just before that would have run out.
		if err := s.moveLeases(ctx, t, d, float64(now.UnixMilli())); err != nil {
			return err
		}
	}
	return nil
}

// awaitLeap has what ends leases and groups wait while the clock leaps: else a scheduler that looks in that moment would
// end those that have not been moved on yet. What got past here right before the leap may still run in it.
func (s *Server) awaitLeap(_ *server.Peer, command string, args ...string) bool {
	if (command == "EVALSHA" || command == "EVAL") && len(args) > 0 {
		switch queue.ScriptName(args[0]) {
		case "expire", "remove":
			s.leap.RLock()
			defer s.leap.RUnlock()
		}
	}
	return false // the command goes on
}

// settle does the due-time work of a topic, in the place of whoever holds its scheduling lease.
func (s *Server) settle(ctx context.Context, t topic) error {
	const own = "redisdelaytest|0"
	for {
		groups, err := t.Groups(ctx)
		if err != nil {
			return err
		}
		holder, err := s.client.HGet(ctx, t.keys.Scheduler(), "holder").Result()
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
		if turn.Expired {
			_, err = t.Expire(ctx)
		}
		if err == nil && turn.Purge {
			_, err = t.Purge(ctx)
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

// anyMailbox is a pattern for the mailboxes of all prefixes. The program may have channels of its own that are called
// much like one, but hardly with such a token.
var anyMailbox = queue.MailboxChannel("*", strings.Repeat("[0-9A-Z]", len(queue.Token())))

// wakeAll has every process look at the clock, as they sleep by clocks of their own, and waits until all have: then
// their subscriptions have claimed what is ready, and offer nothing that is too late.
func (s *Server) wakeAll() error {
	mailboxes := s.mini.PubSubChannels(anyMailbox)
	if len(mailboxes) == 0 {
		return nil
	}
	asked := map[string]string{} // mailboxes, by the channels on which they answer
	var answers []string
	for i, mailbox := range mailboxes {
		answers = append(answers, fmt.Sprintf("%s:looked:%s:%d", s.prefix, queue.Token(), i))
		asked[answers[i]] = mailbox
	}
	listener := s.client.Subscribe(context.Background(), answers...)
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
	timeout, look := time.NewTimer(patience), time.NewTicker(10*time.Millisecond)
	defer timeout.Stop()
	defer look.Stop()
	for len(asked) > 0 {
		select {
		case answer := <-listener.Channel():
			delete(asked, answer.Channel)
		case <-look.C:
			// One that was closed before it has answered never will, and sleeps no more.
			open := s.mini.PubSubChannels(anyMailbox)
			maps.DeleteFunc(asked, func(_, mailbox string) bool { return !slices.Contains(open, mailbox) })
		case <-timeout.C:
			return fmt.Errorf("%d programs have not looked at the clock within %v", len(asked), patience)
		}
	}
	return nil
}

// ExpireLeases has the leases of a topic run out now, as if the processes that hold its messages had died. When it
// returns, the messages are ready again, their consumers are woken, and the contexts of those who held them have ended,
// with redisdelay.ErrLeaseLost as the cause. Any subscription of the group may get them next, those that held them included.
// It fails if there is no such topic.
func (s *Server) ExpireLeases(topic string) {
	ctx := context.Background()
	t := s.topic(s.prefix, topic)
	err := s.endLeases(ctx, t)
	if err == nil {
		err = s.settle(ctx, t)
	}
	if err == nil {
		err = s.wakeAll()
	}
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: expire leases of topic %q: %w", topic, err))
	}
}

// moveLeases moves on what ends in real time, up to a time: leases, places among those who wait or rest, and groups
// that end when they are not used.
func (s *Server) moveLeases(ctx context.Context, t topic, d time.Duration, upTo float64) error {
	groups, err := t.Groups(ctx)
	if err != nil {
		return err
	}
	keys := []string{t.keys.Idle()}
	for _, g := range groups.Names {
		keys = append(keys, t.keys.Unack(g), t.keys.Waiters(g), t.keys.Resting(g))
	}
	for _, key := range keys {
		if err := s.moveScores(ctx, key, upTo, func(redis.Z) float64 { return float64(d.Milliseconds()) }); err != nil {
			return err
		}
	}
	return nil
}

// endLeases moves all deadlines into the past, in the order that they are in.
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

// moveScores adds to all scores of a sorted set up to one what by says of the highest. 0 is no time, but a group that
// is being removed.
func (s *Server) moveScores(ctx context.Context, key string, upTo float64, by func(last redis.Z) float64) error {
	members, err := s.client.ZRangeWithScores(ctx, key, 0, -1).Result()
	if err != nil || len(members) == 0 {
		return err
	}
	move := by(members[len(members)-1])
	for _, m := range members {
		if m.Score == 0 || m.Score > upTo {
			continue
		}
		m.Score += move
		if err := s.client.ZAddXX(ctx, key, m).Err(); err != nil { // those that are still there
			return err
		}
	}
	return nil
}

// topic is one with its keys.
type topic struct {
	*queue.Topic
	keys queue.Keys
}

func (s *Server) topic(prefix, name string) topic {
	return topic{queue.NewTopic(s.client, prefix, name), queue.NewKeys(prefix, name)}
}

// topics are those of every prefix. A key of the program's own may be called like a registry: so only those count that
// are there.
func (s *Server) topics(ctx context.Context) ([]topic, error) {
	var topics []topic
	for _, key := range s.mini.Keys() {
		prefix, ok := strings.CutSuffix(key, ":topics")
		if !ok || key != queue.Registry(prefix) || strings.Contains(key, "{") {
			continue
		}
		typ, err := s.client.Type(ctx, key).Result()
		if err != nil {
			return nil, err
		}
		if typ != "set" {
			continue
		}
		var names []string
		if err := queue.Topics(ctx, s.client, prefix, func(name string) { names = append(names, name) }); err != nil {
			return nil, err
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			t := s.topic(prefix, name)
			if _, err := t.Existing(ctx); errors.Is(err, queue.ErrNotFound) {
				continue
			} else if err != nil {
				return nil, err
			}
			topics = append(topics, t)
		}
	}
	return topics, nil
}
