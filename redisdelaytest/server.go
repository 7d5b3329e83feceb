package redisdelaytest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/field"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Config configures a Server. The zero value is right for most tests.
type Config struct {
	// KeyPrefix is the prefix of the program under test. Default redisdelay.DefaultKeyPrefix.
	KeyPrefix string

	// Unmarshaler reads the messages of the program under test. Default
	// redisdelay.BinaryMarshaler{}.
	Unmarshaler redisdelay.Unmarshaler

	// Now is the initial time of the server's clock. Default the present time, because delays from
	// Watermill's own components use the program's clock.
	Now time.Time
}

// Validate reports all faults of the configuration at once. Errors wrap
// redisdelay.ErrInvalidConfig. New calls it.
func (c Config) Validate() error { return field.Check("KeyPrefix", queue.CheckPrefix(c.KeyPrefix)) }

// Server is a Redis server in this process, with a clock that stands still. Its methods are safe
// for concurrent use, except those that move the clock.
//
// On an error, methods fail the test that was given to Start. On a Server of New they panic.
type Server struct {
	mini   *miniredis.Miniredis
	client *servers.Client
	admin  *admin.Admin
	prefix string
	fail   func(error)
	moving sync.RWMutex // held while the clock and the leases are moved
}

// Start returns a server that is closed when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Config{})
}

// StartWith returns a server with a configuration, which is closed when the test ends.
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

// New returns a server outside of a test, such as for an Example. The caller must close it. Errors
// about the Config wrap redisdelay.ErrInvalidConfig.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("redisdelaytest: %w", err)
	}
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
		client: servers.MustClient(redis.NewClient(&redis.Options{Addr: mini.Addr()})),
		prefix: cmp.Or(config.KeyPrefix, redisdelay.DefaultKeyPrefix),
		fail:   func(err error) { panic(err) },
	}
	mini.Server().SetPreHook(s.awaitMove)
	var err error
	s.admin, err = admin.New(admin.Config{Client: s.Client(), KeyPrefix: config.KeyPrefix, Unmarshaler: config.Unmarshaler})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("redisdelaytest: %w", err)
	}
	return s, nil
}

// Close stops the server. Close its users first.
func (s *Server) Close() {
	_ = s.Client().Close() // errors do not matter any more
	s.mini.Close()
}

// Client returns a client of the server. The server closes it.
func (s *Server) Client() redis.UniversalClient { return s.client.User() }

// Addr returns the server's address, for the program's own clients.
func (s *Server) Addr() string { return s.mini.Addr() }

// Admin returns an Admin for the server's topics.
func (s *Server) Admin() *admin.Admin { return s.admin }

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
		err = s.wakeAll()
	}
	if err != nil {
		s.fail(fmt.Errorf("redisdelaytest: expire leases of topic %q: %w", topic, err))
	}
}

// moveLeases adds d to the deadlines up to upTo that count in real time: of leases, of waiting and
// resting subscriptions, of standbys and active ones, and of unused groups.
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
	return s.moveActive(ctx, t, d, upTo)
}

// moveActive adds d to the deadlines up to upTo of active subscriptions.
func (s *Server) moveActive(ctx context.Context, t topic, d time.Duration, upTo float64) error {
	for {
		err := s.Client().Watch(ctx, func(tx *redis.Tx) error {
			active, err := tx.HGetAll(ctx, t.keys.Active()).Result()
			if err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				for group, text := range active {
					part := strings.Fields(text)
					if ends, err := strconv.ParseFloat(part[2], 64); err == nil && ends > 0 && ends <= upTo {
						part[2] = strconv.FormatInt(int64(ends)+d.Milliseconds(), 10)
						p.HSet(ctx, t.keys.Active(), group, strings.Join(part, " "))
					}
				}
				return nil
			})
			return err
		}, t.keys.Active())
		if err != redis.TxFailedErr { // else a claim came between
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
	members, err := s.Client().ZRangeWithScores(ctx, key, 0, -1).Result()
	if err != nil || len(members) == 0 {
		return err
	}
	move := by(members[len(members)-1])
	for _, m := range members {
		name, _ := m.Member.(string)
		if m.Score == 0 || m.Score > upTo || queue.IsWindow(name) {
			continue
		}
		m.Score += move
		if err := s.Client().ZAddXX(ctx, key, m).Err(); err != nil { // only members that still exist
			return err
		}
	}
	return nil
}

// topic is a topic with its keys.
type topic struct {
	*queue.Topic
	keys queue.Keys
}

func (s *Server) topic(prefix, name string) topic {
	return topic{queue.NewTopic(s.client, prefix, name), queue.NewKeys(prefix, name)}
}

// topics returns the topics of every prefix. It ignores topics that do not exist, because a key of
// the program may be named like a registry.
func (s *Server) topics(ctx context.Context) ([]topic, error) {
	var topics []topic
	for _, key := range s.mini.Keys() {
		prefix, ok := strings.CutSuffix(key, ":topics")
		if !ok || key != queue.Registry(prefix) || strings.Contains(key, "{") {
			continue
		}
		typ, err := s.Client().Type(ctx, key).Result()
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
