package redisdelay_test

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

const evictionWarning = "Redis may lose messages when its memory is full: set maxmemory-policy to noeviction"

func warnings(book *logbook, component string) (n int) {
	for _, e := range book.find("error", component) {
		if e.text == evictionWarning && e.fields["maxmemory_policy"] == "allkeys-lru" {
			n++
		}
	}
	return n
}

func TestAServerThatMayEvictIsWarnedOfOnce(t *testing.T) {
	s, _ := private(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	book := &logbook{}
	sub := newLoggingSubscriber(t, s, book.logger())
	p, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: s.Client, KeyPrefix: s.Prefix}, book.logger())
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	for _, topic := range []string{"t", "u"} {
		messages := subscribeTo(t, sub, topic)
		publish(t, p, topic, "x")
		require.Equal(t, []string{"x"}, consume(t, messages, 1))
	}
	require.Equal(t, 1, warnings(book, "redisdelay.subscriber"))
	require.Equal(t, 1, warnings(book, "redisdelay.publisher"))
}

// lacking is a client whose user may do anything but run a command.
func lacking(t *testing.T, s redistest.Server, in *redistest.Instance, command string) *redis.Client {
	t.Helper()
	require.NoError(t, s.Client.Do(ctx, "ACL", "SETUSER", command, "on", ">secret", "~*", "&*", "+@all", "-"+command).Err())
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: command, Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestAUserThatLacksAPermissionIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	s, in := private(t)
	for _, command := range []string{"hset", "zadd", "lpush", "rpush", "set"} {
		forbidden := s
		forbidden.Client = lacking(t, s, in, command)
		_, err := newSubscriber(t, forbidden).Subscribe(ctx, "t")
		require.ErrorIs(t, err, redisdelay.ErrForbidden)
		require.ErrorContains(t, err, "t")
		require.ErrorIs(t, newSubscriber(t, forbidden).SubscribeInitialize("t"), redisdelay.ErrForbidden)
		require.Zero(t, s.Client.Exists(ctx, s.Prefix+":{t}:groups").Val(), "a group would collect messages")
		if command != "lpush" { // which publishing does not take
			require.Error(t, newPublisher(t, forbidden).Publish("t", text("x")))
		}
		require.Zero(t, s.Client.HLen(ctx, s.Prefix+":{t}:messages").Val(), command)
	}
	queuetest.Check(t, s.Client, s.Prefix)
}

// Without the check, a Publish that may add entries and not trim them would fail when they are in
// the stream.
func TestAUserThatLacksAPermissionForStreamsIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	s, in := private(t)
	for _, command := range []string{"xadd", "xtrim", "xdel", "xlen"} {
		forbidden := s
		forbidden.Client = lacking(t, s, in, command)
		p := newPublisher(t, forbidden, streaming(redisdelay.StreamConfig{MaxLen: 10, DisableScheduler: true}))
		err := p.Publish(stream(s), text("x"), delayed("y", time.Hour))
		require.ErrorIs(t, err, redisdelay.ErrForbidden)
		require.ErrorContains(t, err, "the user has to be allowed +"+command)
		require.Zero(t, s.Client.Exists(ctx, stream(s), s.Prefix+":{"+stream(s)+"}:messages").Val())
		require.NoError(t, newPublisher(t, forbidden).Publish("t", text("x")), "which takes no stream")
	}
	queuetest.Check(t, s.Client, s.Prefix)
}

func TestASchedulerWhoseUserLacksAPermissionForStreamsDoesTheRest(t *testing.T) {
	s, in := private(t)
	register(t, s, "t")
	into := streaming(redisdelay.StreamConfig{MaxLen: 10, DisableScheduler: true})
	book := &logbook{}
	alone, err := scheduler.New(scheduler.Config{Client: lacking(t, s, in, "xtrim"), KeyPrefix: s.Prefix}, book.logger())
	require.NoError(t, err)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- alone.Run(running) }()
	require.NoError(t, newPublisher(t, s).Publish("t", delayed("x", time.Millisecond)))
	require.NoError(t, newPublisher(t, s, into).Publish(stream(s), delayed("x", time.Millisecond)))
	eventually(t, func() bool { return book.count("error", "redisdelay.scheduler") == 1 }, "it says so")
	require.ErrorContains(t, book.find("error", "redisdelay.scheduler")[0].err, "the user has to be allowed +xtrim")
	eventually(t, func() bool { return s.Client.ZCard(ctx, s.Prefix+":{t}:pending").Val() == 0 }, "the other topic is served")
	stop()
	require.NoError(t, <-done)
	require.Zero(t, s.Client.XLen(ctx, stream(s)).Val())
	queuetest.Check(t, s.Client, s.Prefix)
}

func TestASchedulerWhoseUserLacksAPermissionMovesNothing(t *testing.T) {
	for _, command := range []string{"rpush", "subscribe"} {
		t.Run(command, func(t *testing.T) { schedulerMovesNothingWithout(t, command) })
	}
}

func schedulerMovesNothingWithout(t *testing.T, command string) {
	s, in := private(t)
	register(t, s, "t")
	require.NoError(t, newPublisher(t, s).Publish("t", delayed("x", time.Millisecond)))
	book := &logbook{}
	alone, err := scheduler.New(scheduler.Config{Client: lacking(t, s, in, command), KeyPrefix: s.Prefix, Topics: []string{"t"}}, book.logger())
	require.NoError(t, err)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- alone.Run(running) }()
	eventually(t, func() bool { return book.count("error", "redisdelay.scheduler") == 1 }, "it says so")
	require.ErrorContains(t, book.find("error", "redisdelay.scheduler")[0].err, "the user has to be allowed +"+command)
	stop()
	require.NoError(t, <-done)
	require.EqualValues(t, 1, s.Client.ZCard(ctx, s.Prefix+":{t}:pending").Val())
	queuetest.Check(t, s.Client, s.Prefix)
}

func TestASchedulerNamesAllThatItsUserLacksInOneError(t *testing.T) {
	s, in := private(t)
	register(t, s, "t")
	client := lacking(t, s, in, "rpush")
	require.NoError(t, s.Client.Do(ctx, "ACL", "SETUSER", "rpush", "-zpopmin", "resetchannels").Err())
	book := &logbook{}
	alone, err := scheduler.New(scheduler.Config{Client: client, KeyPrefix: s.Prefix, Topics: []string{"t"}}, book.logger())
	require.NoError(t, err)
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- alone.Run(running) }()
	eventually(t, func() bool { return book.count("error", "redisdelay.scheduler") == 1 }, "it says so")
	require.Equal(t, []any{"+rpush", "+zpopmin", "&" + s.Prefix + ":mailbox:*"}, rulesOf(t, book.find("error", "redisdelay.scheduler")[0].err))
	stop()
	require.NoError(t, <-done)
}

func TestTheLossOfAGroupIsLogged(t *testing.T) {
	s, _ := private(t)
	book := &logbook{}
	messages := subscribeTo(t, newLoggingSubscriber(t, s, book.logger()), "t")
	s.Client.FlushAll(ctx)
	publish(t, newPublisher(t, s), "t", "x")
	require.Equal(t, []string{"x"}, consume(t, messages, 1))
	found := book.find("error", "redisdelay.subscriber")
	require.Len(t, found, 1)
	require.True(t, strings.HasPrefix(found[0].text, "The consumer group is gone from Redis"))
	require.EqualError(t, found[0].err, "data was lost, or the group was removed")
}

// A newer version has taken the topic over: no data is lost, and the group does not come back.
func TestAnUnknownLayoutIsLoggedOnceAndIsNoLossOfData(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client, book := another(t, s), &logbook{}
		claims := counter(client, ":claim:")
		subscribeTo(t, newLoggingSubscriber(t, s, book.logger(), through(client)), "t")
		k := queue.NewKeys(s.Prefix, "t")
		layout := s.Client.HGet(ctx, k.Meta(), "layout").Val()
		require.NoError(t, s.Client.HSet(ctx, k.Meta(), "layout", "of the future").Err())
		require.NoError(t, s.Client.Rename(ctx, k.Groups(), k.Groups()+":new").Err())
		before := claims.calls()
		testkit.LookNow(t, s)
		eventually(t, func() bool { return claims.calls() > before+3 }, "attempts")
		found := book.find("error", "redisdelay.subscriber")
		require.Len(t, found, 1)
		require.Equal(t, "Redis does not answer as it should, trying again", found[0].text)
		require.ErrorIs(t, found[0].err, redisdelay.ErrLayout)

		require.NoError(t, s.Client.HSet(ctx, k.Meta(), "layout", layout).Err())
		require.NoError(t, s.Client.Rename(ctx, k.Groups()+":new", k.Groups()).Err())
	})
}

// Another subscription may have registered the group, or the answer to that call was lost.
func TestTheLossOfAGroupIsLoggedWhereRegisteringSeemedToFail(t *testing.T) {
	s, _ := private(t)
	client, book := another(t, s), &logbook{}
	registering := failing(client, ":meta")
	messages := subscribeTo(t, newLoggingSubscriber(t, s, book.logger(), through(client)), "t")
	registering.fail(io.EOF)
	s.Client.FlushAll(ctx)
	testkit.LookNow(t, s)
	lost := func() (n int) {
		for _, e := range book.find("error", "redisdelay.subscriber") {
			if strings.HasPrefix(e.text, "The consumer group is gone from Redis") {
				n++
			}
		}
		return n
	}
	eventually(t, func() bool { return registering.failures() > 1 }, "attempts")
	require.Zero(t, lost())
	register(t, s, "t")
	publish(t, newPublisher(t, s), "t", "x")
	require.Equal(t, []string{"x"}, consume(t, messages, 1))
	eventually(t, func() bool { return lost() == 1 }, "it says so")
}

// missing is the text of an error about a command that the server does not have.
func missing(command string) string {
	return "the server has no " + command + ": it is older than Redis 6.2, or its rename-command took that away"
}

// Servers word it differently. REDIS_SERVER_BIN has this run on another.
func TestACommandThatTheServerDoesNotHaveIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	t.Parallel()
	for command, publishes := range map[string]bool{
		"ZPOPMIN": true, "RPUSH": true, "ZADD": true, "PUBLISH": true, "EVALSHA": true,
		"LTRIM": false, "ZREMRANGEBYRANK": false, "SUBSCRIBE": false,
	} {
		t.Run(command, func(t *testing.T) {
			s, _ := private(t, "--rename-command", command, "")
			_, err := newSubscriber(t, s).Subscribe(ctx, "t")
			require.ErrorIs(t, err, redisdelay.ErrForbidden)
			require.ErrorContains(t, err, missing(command))
			require.Zero(t, s.Client.DBSize(ctx).Val())
			err = newPublisher(t, s).Publish("t", text("x"))
			if publishes {
				require.ErrorIs(t, err, redisdelay.ErrForbidden)
				require.ErrorContains(t, err, missing(command))
				require.Zero(t, s.Client.DBSize(ctx).Val())
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// ruleOf finds the ACL rules that an error names.
var ruleOf = regexp.MustCompile(`(?:^| )([+~&][^ ]*[^ :;])`)

// rulesOf returns the ACL rules that an ErrForbidden names.
func rulesOf(t *testing.T, err error) (rules []any) {
	t.Helper()
	require.ErrorIs(t, err, redisdelay.ErrForbidden)
	for _, found := range ruleOf.FindAllStringSubmatch(err.Error(), -1) {
		rules = append(rules, found[1])
	}
	require.NotEmpty(t, rules, err)
	return rules
}

// The user may do all after a grant of what the first error names.
func TestOneErrorNamesAllThatAUserLacks(t *testing.T) {
	s, in := private(t)
	users := map[string][]any{
		"nothing":        {"-@all", "+@connection"},
		"no-channels":    {"~*", "+@all"},
		"no-keys":        {"&*", "+@all"},
		"only-commands":  {"+@all"},
		"only-reads":     {"~*", "-@all", "+@connection", "+@read", "+@scripting"},
		"no-write-set":   {"~*", "+@all", "-set", "-rpush", "-sadd", "-subscribe"},
		"no-pubsub":      {"~*", "+@all", "-@pubsub"},
		"no-scripts":     {"~*", "&*", "+@all", "-@scripting"},
		"other-channels": {"~*", "&another:*", "+@all", "-hset", "-ltrim"},
	}
	for name, has := range users {
		t.Run(name, func(t *testing.T) {
			as := func(prefix string) redistest.Server {
				user := name + "-" + prefix
				set := append([]any{"ACL", "SETUSER", user, "on", ">secret", "resetchannels"}, has...)
				require.NoError(t, s.Client.Do(ctx, set...).Err())
				client := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: user, Password: "secret"})
				t.Cleanup(func() { _ = client.Close() })
				return redistest.Server{Client: client, Prefix: user}
			}
			grant := func(to redistest.Server, err error) {
				t.Helper()
				require.NoError(t, s.Client.Do(ctx, append([]any{"ACL", "SETUSER", to.Prefix}, rulesOf(t, err)...)...).Err(), err)
				require.Empty(t, s.Client.Keys(ctx, to.Prefix+":*").Val())
			}
			consumer := as("consumer")
			_, err := newSubscriber(t, consumer).Subscribe(ctx, "t")
			grant(consumer, err)
			require.NotRegexp(t, `&`+consumer.Prefix+`:mailbox:[^*]`, err.Error(), "a random channel")
			messages := subscribeTo(t, newSubscriber(t, consumer), "t")

			publisher := as("publisher")
			if err := newPublisher(t, publisher).Publish("t", text("x")); err != nil {
				grant(publisher, err)
				require.NoError(t, newPublisher(t, publisher).Publish("t", text("x")))
			}
			publish(t, newPublisher(t, consumer), "t", "x", "y") // a subscriber may wake others, too
			require.Equal(t, []string{"x", "y"}, consume(t, messages, 2))
		})
	}
}

func TestAFullServerSaysThatItIsFull(t *testing.T) {
	s, _ := private(t)
	messages := subscribeTo(t, newSubscriber(t, s), "t")
	p := newPublisher(t, s)
	publish(t, p, "t", "x")
	require.Equal(t, []string{"x"}, consume(t, messages, 1))
	require.NoError(t, s.Client.ConfigSet(ctx, "maxmemory", "1").Err())
	full := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, redisdelay.ErrServerFull)
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, redisdelay.ErrTopicFull)
	}
	full(p.Publish("t", text("y")))
	full(p.Publish("t", delayed("y", time.Hour)))
	full(newPublisher(t, s).Publish("new", text("y")))
	full(newSubscriber(t, s).SubscribeInitialize("new"))
	_, err := newSubscriber(t, s).Subscribe(ctx, "new")
	full(err)
	require.NoError(t, s.Client.ConfigSet(ctx, "maxmemory", "0").Err())
	publish(t, p, "t", "y")
	require.Equal(t, []string{"y"}, consume(t, messages, 1))
}
