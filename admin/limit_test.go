package admin_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

func asking(limit redisdelay.Limit, burst, atOnce int) func(*redisdelay.SubscriberConfig) {
	return func(c *redisdelay.SubscriberConfig) { c.Limit, c.Burst, c.AtOnce = limit, burst, atOnce }
}

func TestAnOperatorSetsALimitThatSubscribersKeep(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		join := func(change ...func(*redisdelay.SubscriberConfig)) {
			require.NoError(t, s.subscriber(t, "a", change...).SubscribeInitialize(topic))
		}
		join(asking(50, 10, 5))
		asked := admin.Limit{Rate: 50, Burst: 10, AtOnce: 5}
		require.Equal(t, admin.GroupLimit{Limit: asked, Asked: asked}, s.group(t, "a").Limit)

		set := admin.Limit{Rate: 200, AtOnce: 7}
		did, err := s.admin.SetLimit(ctx, topic, "a", set)
		require.NoError(t, err)
		set.Burst = 20 // what 100ms bring
		require.Equal(t, admin.LimitChange{Group: "a", Before: admin.GroupLimit{Limit: asked, Asked: asked},
			After: admin.GroupLimit{Limit: set, Set: true, Asked: asked}}, did)
		require.Equal(t, did.After, s.group(t, "a").Limit)

		join(asking(3, 2, 0)) // as after a restart, with another configuration
		asked = admin.Limit{Rate: 3, Burst: 2}
		require.Equal(t, admin.GroupLimit{Limit: set, Set: true, Asked: asked}, s.group(t, "a").Limit)
		did, err = s.admin.SetLimit(ctx, topic, "a", admin.Limit{})
		require.NoError(t, err)
		require.Equal(t, admin.GroupLimit{Set: true, Asked: asked}, did.After, "lifted")
		did, err = s.admin.ResetLimit(ctx, topic, "a")
		require.NoError(t, err)
		require.Equal(t, admin.LimitChange{Group: "a", Before: admin.GroupLimit{Set: true, Asked: asked}, After: admin.GroupLimit{Limit: asked, Asked: asked}}, did)
		join()
		require.Zero(t, s.group(t, "a").Limit)
	})
}

func TestWrongLimitsAreRefusedByName(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		for fault, limit := range map[string]admin.Limit{
			"Rate is -1 messages a second, must be from one a day": {Rate: -1}, "Rate is NaN": {Rate: redisdelay.Limit(math.NaN())},
			"Rate is +Inf": {Rate: redisdelay.Every(0)}, "Rate is 100001": {Rate: 100_001}, "Rate is 1e-06": {Rate: 1e-6},
			"Burst is -1": {Rate: 1, Burst: -1}, "Burst is 3, but there is no rate": {Burst: 3}, "AtOnce is -1, must be from 1": {AtOnce: -1},
		} {
			_, err := s.admin.SetLimit(ctx, topic, "a", limit)
			require.ErrorIs(t, err, admin.ErrInvalidArgument, fault)
			require.ErrorContains(t, err, fault)
		}
		_, err := s.admin.SetLimit(ctx, topic, "a", admin.Limit{Rate: -1, Burst: -1, AtOnce: -1})
		require.ErrorContains(t, err, "Rate is -1")
		require.ErrorContains(t, err, "Burst is -1")
		require.ErrorContains(t, err, "AtOnce is -1")
		require.Zero(t, s.group(t, "a").Limit)

		_, err = s.admin.SetLimit(ctx, topic, "none", admin.Limit{AtOnce: 1})
		require.ErrorIs(t, err, admin.ErrNotFound)
		require.ErrorContains(t, err, `group "none" of topic "orders"`)
		_, err = s.admin.ResetLimit(ctx, "nowhere", "")
		require.ErrorIs(t, err, admin.ErrNotFound)
		require.ErrorContains(t, err, `group "default" of topic "nowhere"`)
	})
}

func TestRatesAreReadAsPeopleSayThem(t *testing.T) {
	t.Parallel()
	rate, err := admin.ParseRate("10/m")
	require.NoError(t, err)
	require.Equal(t, "10/m, burst 1", admin.Limit{Rate: rate, Burst: 1}.String())
	_, err = admin.ParseRate("10")
	require.ErrorIs(t, err, admin.ErrInvalidArgument)
	require.ErrorContains(t, err, `the rate is "10", which has no time; want`)
}

func TestATopicWithAStreamTakesNoLimit(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := s.publisher(t, func(c *redisdelay.PublisherConfig) { c.Stream = &redisdelay.StreamConfig{} })
		require.NoError(t, p.Publish(topic, text("x")))
		_, err := s.admin.SetLimit(ctx, topic, redisdelay.StreamGroup, admin.Limit{AtOnce: 1})
		require.ErrorIs(t, err, admin.ErrTopicMode)
	})
}

func TestPartitionsShareALimit(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		p := newPartitioned(t, s)
		of := func(group string) admin.GroupLimit {
			for _, g := range p.whole(t).Groups {
				if g.Group == group {
					return g.Limit
				}
			}
			return admin.GroupLimit{}
		}
		for fault, limit := range map[string]admin.Limit{
			"a burst of 2 is less than one message for each of 3 partitions": {Rate: 30, Burst: 2},
			"2 at once is less than one for each of 3 partitions":            {AtOnce: 2},
		} {
			_, err := s.admin.SetLimit(ctx, topic, "billing", limit)
			require.ErrorIs(t, err, admin.ErrInvalidArgument)
			require.ErrorContains(t, err, fault)
			require.Zero(t, of("billing"))
		}
		did, err := s.admin.SetLimit(ctx, topic, "billing", admin.Limit{Rate: 30, Burst: 10, AtOnce: 6})
		require.NoError(t, err)
		require.Equal(t, admin.GroupLimit{Limit: admin.Limit{Rate: 30, Burst: 9, AtOnce: 6}, Set: true}, did.After)
		require.Equal(t, did.After, of("billing"))
		for _, part := range p.whole(t).Partitions {
			for _, g := range part.Groups {
				want := admin.Limit{}
				if g.Group == "billing" {
					want = admin.Limit{Rate: 10, Burst: 3, AtOnce: 2}
				}
				require.Equal(t, want, g.Limit.Limit, part.Topic)
			}
		}
		did, err = s.admin.SetLimit(ctx, topic, "audit", admin.Limit{Rate: 3})
		require.NoError(t, err)
		require.Equal(t, 3, did.After.Burst, "one for each partition at least")
		did, err = s.admin.ResetLimit(ctx, topic, "billing")
		require.NoError(t, err)
		require.Equal(t, 10, did.Before.Burst+1)
		require.Zero(t, did.After)
	})
}

// While a topic grows, its partitions never have more together than the limit. A new one has its
// share before the first message.
func TestAGrowingTopicSharesItsLimitsAnew(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		shares := func() (all []admin.Limit) {
			for _, s := range p.stats(t).Partitions {
				for _, g := range s.Groups {
					if g.Group == "billing" {
						all = append(all, g.Limit.Limit)
					}
				}
			}
			return all
		}
		few := admin.Limit{AtOnce: 1}
		require.NoError(t, only(p.admin.SetLimit(ctx, topic, "billing", admin.Limit{AtOnce: 3})))
		_, err := p.admin.SetPartitions(ctx, topic, 5)
		require.ErrorIs(t, err, admin.ErrInvalidArgument)
		require.ErrorContains(t, err, `the limit of group "billing": 3 at once is less than one for each of 5 partitions`)
		p.set(t, 0, 3, 0, 0)
		require.Equal(t, []admin.Limit{few, few, few}, shares())

		require.NoError(t, only(p.admin.SetLimit(ctx, topic, "billing", admin.Limit{Rate: 30, Burst: 15, AtOnce: 21})))
		share := admin.Limit{Rate: 6, Burst: 3, AtOnce: 4}
		p.set(t, 5, 3, 0, 5)
		require.Equal(t, []admin.Limit{share, share, share}, shares(), "lower before the growth")
		more, err := partition.Topics(topic, 5)
		require.NoError(t, err)
		for _, group := range []string{"audit", "billing"} {
			for _, plain := range more[3:] {
				testkit.SubscribeTo(t, p.subscriber(t, group), plain)
			}
		}
		eventually(t, func() bool {
			got, err := p.admin.SetPartitions(ctx, topic, 0)
			require.NoError(t, err)
			return len(got.Left) == 0
		}, "the subscriptions are not seen")
		require.Equal(t, []admin.Limit{share, share, share, {}, {}}, shares())
		p.set(t, 5, 5, 3, 0)
		require.Equal(t, []admin.Limit{share, share, share, share, share}, shares())
		require.Zero(t, p.group(t, "audit").Limit)
	})
}

// holdBack makes a group that has a message in hand, and whose others wait for the limit.
// The test settles the message at its end.
func holdBack(t *testing.T, s *setup, messages int, change func(*redisdelay.SubscriberConfig)) {
	t.Helper()
	in := s.subscribe(t, "a", change, func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 2 })
	require.NoError(t, s.publisher(t).Publish(topic, messagesOf(messages)...))
	msg := receive(t, in)
	t.Cleanup(func() { msg.Ack() })
	eventually(t, func() bool { return !s.group(t, "a").LimitedSince.IsZero() }, "they wait for the limit")
}

func TestWhatWaitsForALimitIsToldApart(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		holdBack(t, s, 5, asking(redisdelay.Every(time.Hour), 1, 0))
		g := s.group(t, "a")
		require.True(t, g.Subscribed)
		require.Equal(t, 4, g.Ready)
		require.Positive(t, g.Counters.Limited)
		eventually(t, func() bool { return s.group(t, "a").Counters.LimitedFor > g.Counters.LimitedFor }, "it goes on")
		require.False(t, g.LimitedSince.After(s.stats(t).Now))

		problems, _ := s.diagnose(t, admin.DiagnoseOptions{Late: time.Nanosecond})
		require.Len(t, ofKind(problems, admin.LimitedNow), 1)
		require.Empty(t, ofKind(problems, admin.Late), "more subscribers would not help")
		p := ofKind(problems, admin.LimitedNow)[0]
		require.Equal(t, admin.Notice, p.Severity)
		require.Regexp(t, `^Group "a" of topic "orders" waits for its limit, 1/h, burst 1: 4 messages are ready, the first for \d+s, and they take at least 4h0m0s\.$`, p.Text)
		require.Equal(t, []string{"groups", "limit", topic, "a"}, p.Mend)

		require.NoError(t, only(s.admin.SetLimit(ctx, topic, "a", admin.Limit{})))
		eventually(t, func() bool { return s.group(t, "a").InHand == 2 }, "those who waited are woken")
		require.Zero(t, s.group(t, "a").LimitedSince)
	})
}

// A subscription that waits for a token has nothing in hand, and is one all the same.
func TestWhoWaitsForATokenIsSubscribed(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		in := s.subscribe(t, "a", asking(redisdelay.Every(time.Hour), 1, 0))
		require.NoError(t, s.publisher(t).Publish(topic, messagesOf(2)...))
		receive(t, in).Ack()
		eventually(t, func() bool {
			g := s.group(t, "a")
			return g.InHand == 0 && !g.LimitedSince.IsZero()
		}, "it waits")
		require.True(t, s.group(t, "a").Subscribed)
		idle, err := s.admin.GroupsWithoutSubscribers(ctx, topic, 0)
		require.NoError(t, err)
		require.Empty(t, idle)
	})
}

func TestTheDoctorSaysThatALimitAtOnceDependsOnTheHandlers(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		holdBack(t, s, 3, asking(0, 0, 1))
		problems, _ := s.diagnose(t, admin.DiagnoseOptions{})
		require.Len(t, ofKind(problems, admin.LimitedNow), 1)
		require.Contains(t, problems[len(problems)-1].Text, "its limit, 1 at once: 2 messages are ready")
		require.Contains(t, ofKind(problems, admin.LimitedNow)[0].Text, "how long they take depends on their handlers")
	})
}

func ofKind(problems []admin.Problem, kind admin.ProblemKind) (found []admin.Problem) {
	for _, p := range problems {
		if p.Kind == kind {
			found = append(found, p)
		}
	}
	return found
}

// The settings that an operator has set are in the text of the group, which all scripts read.
func TestALimitOutlastsARestartOfTheServer(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := setupOn(t, redistest.Server{Client: in.Client(t), Prefix: "own"})
	s.register(t, "a")
	did, err := s.admin.SetLimit(ctx, topic, "a", admin.Limit{Rate: redisdelay.Every(time.Minute), AtOnce: 3})
	require.NoError(t, err)
	require.Equal(t, "1/m, burst 1, 3 at once, set by an operator", did.After.String())
	in.Restart()
	eventually(t, func() bool { return s.Client.Ping(ctx).Err() == nil }, "it is back")
	require.Equal(t, did.After, s.group(t, "a").Limit)
	require.Equal(t, queue.Layout+" limits", s.Client.HGet(ctx, s.keys.Meta(), "layout").Val())
}

// An error between the shares and the number leaves lower shares, and says so.
func TestLimitsThatAnErrorLeavesLowerAreNamed(t *testing.T) {
	eachPartition(t, func(t *testing.T, p *partitioned) {
		require.NoError(t, only(p.admin.SetLimit(ctx, topic, "billing", admin.Limit{Rate: 60, Burst: 60, AtOnce: 60})))
		client := redis.NewClient(p.Client.(*redis.Client).Options())
		defer client.Close()
		a, err := admin.New(admin.Config{Client: client, KeyPrefix: p.Prefix})
		require.NoError(t, err)
		refuses := true
		client.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) error {
			if refuses && cmd.Name() == "hset" {
				return errors.New("no answer")
			}
			return nil
		}))
		_, err = a.SetPartitions(ctx, topic, 6)
		require.ErrorContains(t, err, "no answer")
		require.ErrorContains(t, err, "set them again")
		refuses = false
		require.NoError(t, only(a.SetPartitions(ctx, topic, 6)))
	})
}
