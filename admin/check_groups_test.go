package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func nameOf(group int) string { return fmt.Sprintf("g%05d", group) }

// registerMany registers groups. All but the first get a copy of its settings, because a
// registration returns all groups.
func (s *setup) registerMany(t testing.TB, n int) {
	t.Helper()
	s.register(t, nameOf(0))
	options := s.Client.HGet(ctx, s.keys.Groups(), nameOf(0)).Val()
	_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for g := 1; g < n; g++ {
			p.HSet(ctx, s.keys.Groups(), nameOf(g), options)
		}
		p.HSet(ctx, s.keys.Meta(), "groups", queue.Token())
		return nil
	})
	require.NoError(t, err)
}

// commands returns how many commands the server has run, those of scripts too.
func commands(t testing.TB, client redis.UniversalClient) (n int) {
	t.Helper()
	stats, err := client.Info(ctx, "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(stats) {
		if _, after, ok := strings.Cut(line, ":calls="); ok {
			var calls int
			_, err := fmt.Sscanf(after, "%d,", &calls)
			require.NoError(t, err)
			n += calls
		}
	}
	return n
}

// states fill the groups of a topic with 20 messages.
var states = map[string]func(t testing.TB, s *setup, groups int){
	"ready": func(testing.TB, *setup, int) {},
	"in hand": func(t testing.TB, s *setup, groups int) {
		s.claimMany(t, groups)
	},
	"dead": func(t testing.TB, s *setup, groups int) {
		for group, messages := range s.claimMany(t, groups) {
			var failures []queue.Failure
			for i := range messages {
				failures = append(failures, queue.Failure{Leased: &messages[i], Dead: true, Reason: "x"})
			}
			require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), group.NackCalls(failures)...))
		}
	},
	"done but for one group": func(t testing.TB, s *setup, groups int) {
		for group, messages := range s.claimMany(t, groups-1) {
			var leased []*queue.Leased
			for i := range messages {
				leased = append(leased, &messages[i])
			}
			require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), group.AckCalls(leased)...))
		}
	},
	"without a count": func(t testing.TB, s *setup, _ int) {
		ids, err := s.Client.HKeys(ctx, s.keys.Refs()).Result()
		require.NoError(t, err)
		require.NoError(t, s.Client.HDel(ctx, s.keys.Refs(), ids[:10]...).Err())
	},
}

// claimMany claims all messages in the first n groups.
func (s *setup) claimMany(t testing.TB, n int) map[*queue.Group][]queue.Leased {
	t.Helper()
	all := map[*queue.Group][]queue.Leased{}
	for g := range n {
		group := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topic).Group(nameOf(g))
		c := queue.Claim{Subscription: nameOf(g), Number: 1, Limit: 100, Lease: time.Hour, Bytes: 1 << 30}
		call := group.ClaimCall(c)
		require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), call))
		claimed, err := c.ReadClaim(call.Cmd())
		require.NoError(t, err)
		require.Len(t, claimed.Messages, 20)
		all[group] = claimed.Messages
	}
	return all
}

func TestCommandsOfCheckGrowWithTheGroups(t *testing.T) {
	t.Parallel()
	for name, fill := range states {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ran := map[int]int{}
			for _, groups := range []int{50, 200} {
				s := setupOn(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"})
				s.registerMany(t, groups)
				require.NoError(t, s.publisher(t).Publish(topic, messagesOf(20)...))
				fill(t, s, groups)
				before := commands(t, s.Client)
				report, err := s.admin.Check(ctx, topic)
				require.NoError(t, err)
				ran[groups] = commands(t, s.Client) - before
				require.Equal(t, 20, report.Messages)
				require.Zero(t, report.Unconfirmed)
				if name == "without a count" {
					require.Len(t, report.Violations(), 10)
				} else {
					require.Empty(t, report.Violations())
				}
			}
			t.Logf("%s: %d commands for 50 groups, %d for 200", name, ran[50], ran[200])
			require.Less(t, ran[200], 5*ran[50])
			require.Less(t, ran[200], 200*20*100)
		})
	}
}

// manyGroups is 5,000 in a stress build.
var manyGroups = 1000

// A step that stops the server for long would delay all other clients.
func TestCheckOfManyGroupsTakesShortSteps(t *testing.T) {
	t.Parallel()
	s := setupOn(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"})
	s.registerMany(t, manyGroups)
	p := s.publisher(t)
	for range 20 { // of more at once, a scheduler would have to move some
		require.NoError(t, p.Publish(topic, text("x")))
	}
	require.NoError(t, s.Client.LPop(ctx, s.keys.Ready(nameOf(manyGroups/2))).Err())

	client := redis.NewClient(s.Client.(*redis.Client).Options())
	defer client.Close()
	reads := 0 // keys of a script, times its arguments, at most
	var steps []time.Duration
	client.AddHook(redistest.Hook(func(_ context.Context, calls []redis.Cmder, next func() error) error {
		for _, call := range calls {
			if args := call.Args(); call.Name() == "evalsha" && len(args) > 3 {
				keys := args[2].(int)
				reads = max(reads, keys*(len(args)-keys))
			}
		}
		began := time.Now()
		defer func() { steps = append(steps, time.Since(began)) }()
		return next()
	}))
	a, err := admin.New(admin.Config{Client: client, KeyPrefix: s.Prefix})
	require.NoError(t, err)
	began, before := time.Now(), commands(t, s.Client)
	report, err := a.Check(ctx, topic)
	require.NoError(t, err)
	took, ran := time.Since(began), commands(t, s.Client)-before
	require.Len(t, report.Violations(), 1)
	require.Equal(t, fmt.Sprintf("refs says that %d groups need it, and %d have it", manyGroups, manyGroups-1), report.Violations()[0].Detail)
	slices.Sort(steps)
	t.Logf("%d groups: %v, %d commands, %d round trips; one of a thousand took longer than %v", manyGroups, took, ran,
		len(steps), steps[len(steps)-1-len(steps)/1000])
	require.Less(t, reads, 300*300)
	require.Less(t, ran, manyGroups*20*100)
}
