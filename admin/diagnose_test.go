package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// ofServer are the kinds of problems of the server, which tests of topics leave out.
var ofServer = []admin.ProblemKind{admin.Memory, admin.Eviction, admin.Persistence, admin.Clock}

func (s *setup) diagnose(t *testing.T, o admin.DiagnoseOptions) (problems []admin.Problem, kinds []string) {
	t.Helper()
	d, err := s.admin.Diagnose(ctx, o)
	require.NoError(t, err)
	for _, p := range d.Problems {
		if p.Topic != "" || !slices.Contains(ofServer, p.Kind) {
			problems = append(problems, p)
			kinds = append(kinds, fmt.Sprintf("%s %s %s/%s", p.Severity, p.Kind, p.Topic, p.Group))
		}
	}
	return problems, kinds
}

func TestDiagnoseNamesEveryProblemWorstFirst(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t)
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	_, kinds := s.diagnose(t, admin.DiagnoseOptions{})
	require.Empty(t, kinds, "there are no topics")

	sub := s.subscriber(t, "slow", func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 1 })
	messages, err := sub.Subscribe(ctx, topic)
	require.NoError(t, err)
	s.register(t, "unread", "stopped")
	require.NoError(t, s.publisher(t).Publish(topic, text("1"), text("2")))
	held := receive(t, messages)
	eventually(t, func() bool { return s.group(t, "slow").Subscribed }, "")
	require.NoError(t, only(s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("stopped"), By: "ann", Why: "deploy"})))
	server.Advance(5 * time.Minute)

	require.NoError(t, s.subscriber(t, "x").SubscribeInitialize("alone"))
	require.NoError(t, s.publisher(t).Publish("alone", delayed("x", time.Hour)))
	alone := queue.NewKeys(s.Prefix, "alone")
	require.NoError(t, s.Client.HDel(ctx, alone.Scheduler(), "holder", "standby").Err())
	require.NoError(t, s.Client.HSet(ctx, alone.Scheduler(), "fault", fmt.Sprintf("%d it broke", server.Now().UnixMilli())).Err())
	require.NoError(t, only(s.admin.Pause(ctx, "alone", admin.PauseOptions{For: time.Hour})))
	require.NoError(t, s.Client.HDel(ctx, alone.Scheduler(), "holder", "standby").Err())
	require.NoError(t, s.Client.SAdd(ctx, queue.Registry(s.Prefix), "-gone").Err())
	id := s.list(t, "unread", admin.Ready)[0].ID
	require.NoError(t, s.Client.HSet(ctx, s.keys.Suspects("unread"), id, "4 alone x:1:2:3").Err())
	require.NoError(t, only(s.admin.Kill(ctx, topic, admin.GroupMessage{Group: "unread", ID: s.list(t, "unread", admin.Ready)[1].ID}, admin.KillOptions{Reason: "x"})))

	slow := s.holder(t)
	problems, kinds := s.diagnose(t, admin.DiagnoseOptions{})
	require.Equal(t, []string{
		"warning dead letters orders/unread",
		"critical hung orders/slow",
		"warning paused orders/stopped", "warning unread group orders/unread", "warning suspect orders/unread",
		"critical unscheduled alone/", "critical scheduler fault alone/",
		"notice paused alone/", "notice missing topic -gone/",
	}, kinds)
	var mend, texts, deletes []string
	for _, p := range problems {
		require.NotRegexp(t, `\b(remove|delete|purge)\b`, p.Text, "the first advice never deletes")
		require.NotRegexp(t, `\b(rm|purge)\b`, strings.Join(p.Mend, " "), "the first advice never deletes")
		require.Equal(t, p.Deletes == "", len(p.Delete) == 0)
		if len(p.Delete) > 0 {
			deletes = append(deletes, strings.Join(p.Delete, " ")+": "+p.Deletes)
		}
		mend, texts = append(mend, strings.Join(p.Mend, " ")), append(texts, p.Text)
		require.NotContains(t, p.Text, "\n")
		require.True(t, strings.HasSuffix(p.Text, "."), p.Text)
	}
	require.Equal(t, []string{
		"dead reasons --group=unread orders", "workers release --group=slow orders " + slow.Name(), "resume --group=stopped orders", "groups ls orders",
		"msg kill --group=unread orders " + id, "schedule alone", "", "resume alone", "",
	}, mend)
	require.Equal(t, []string{"groups rm orders unread: the group with 3 messages", "topics rm -- -gone: the name in the list"}, deletes)
	require.Contains(t, texts[1], `Group "slow" of topic "orders" is hung: it has 1 message in hand, the first for 5m0s, and it has never settled any`)
	require.Contains(t, texts[1], "; a message has been ready for 5m0s. Look at admin.test on ")
	require.Contains(t, texts[2], `Topic "orders", group "stopped" is paused since `)
	require.Contains(t, texts[2], `by "ann", because: "deploy".`)
	require.Contains(t, texts[3], "and 2 messages are ready, the first for 5m")
	require.Contains(t, texts[4], "has lost its lease 4 times in a row")
	require.Contains(t, texts[6], "it broke")

	_, kinds = s.diagnose(t, admin.DiagnoseOptions{Topics: []string{"alone", "alone"}})
	require.Len(t, kinds, 3)
	problems, kinds = s.diagnose(t, admin.DiagnoseOptions{Topics: []string{"misspelt"}})
	require.Equal(t, []string{"warning missing topic misspelt/"}, kinds)
	require.Empty(t, problems[0].Mend, "there is nothing to remove")
	require.NoError(t, s.Client.HDel(ctx, s.keys.Suspects("unread"), id).Err())
	held.Ack()
}

// A replica serves what is there, and refuses the rest. The first problem is that it is one, and
// the others follow from it.
func TestDiagnoseNamesTheMasterOfAReplica(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	s := setupOn(t, redistest.Server{Client: in.Client(t), Prefix: "own"})
	s.register(t, "a")
	require.NoError(t, s.publisher(t).Publish(topic, text("due")))
	require.NoError(t, s.publisher(t).Publish("idle", delayed("x", time.Hour)))
	require.NoError(t, s.Client.Do(ctx, "REPLICAOF", "127.0.0.1", "1").Err()) // which does not answer, so the data stays
	problems, kinds := s.diagnose(t, admin.DiagnoseOptions{Late: time.Nanosecond})
	require.Equal(t, []string{"critical replica /"}, kinds)
	require.Equal(t, "Redis is a replica, where nothing can be published, delivered or scheduled: connect to its master, 127.0.0.1:1.", problems[0].Text)
	_, err := s.admin.Ready(ctx, "idle")
	require.ErrorIs(t, err, admin.ErrNotReady)
	require.ErrorContains(t, err, "connect to its master, 127.0.0.1:1")
	require.NoError(t, s.Client.Do(ctx, "REPLICAOF", "NO", "ONE").Err())
	_, kinds = s.diagnose(t, admin.DiagnoseOptions{Topics: []string{"idle"}})
	require.NotContains(t, kinds, "critical replica /")
	_, err = s.admin.Ready(ctx, "idle")
	require.NoError(t, err)
}

func TestDeepDiagnoseHasTheFindingsOfCheck(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, text("x")))
		require.NoError(t, s.Client.HSet(ctx, s.keys.Leases("a"), s.list(t, "a", admin.Ready)[0].ID, "x:1:1:1").Err())
		var progress []admin.DiagnoseProgress
		_, kinds := s.diagnose(t, admin.DiagnoseOptions{Deep: true, Progress: func(p admin.DiagnoseProgress) { progress = append(progress, p) }})
		require.Equal(t, []string{"violation lease orders/a"}, kinds[:1])
		require.Equal(t, []admin.DiagnoseProgress{{Topics: 1}, {Topics: 1, Topic: topic}}, progress)
		require.NoError(t, only(s.admin.Repair(ctx, topic)))
	})
}

// A user who may only read can use all that only looks. A user who may less learns what he may not
// look at, by name.
func TestWhoMayOnlyReadCanUseAllThatOnlyLooks(t *testing.T) {
	t.Parallel()
	root := redistest.Start(t).Client(t)
	s := setupOn(t, redistest.Server{Client: root, Prefix: "own"})
	s.bury(t, 3)
	require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Hour)))
	as := func(name string, command ...any) *admin.Admin {
		require.NoError(t, root.Do(ctx, command...).Err())
		client := redis.NewClient(&redis.Options{Addr: root.(*redis.Client).Options().Addr, Username: name, Password: "secret"})
		t.Cleanup(func() { _ = client.Close() })
		a, err := admin.New(admin.Config{Client: client, KeyPrefix: "own"})
		require.NoError(t, err)
		return a
	}
	users := documentedUsers(t, "own")
	reader := as("reader", users[len(users)-1]...)
	d, err := reader.Diagnose(ctx, admin.DiagnoseOptions{Deep: true})
	require.NoError(t, err)
	for _, p := range d.Problems {
		require.NotEqual(t, admin.Forbidden, p.Kind, p.Text)
	}
	_, _, err = reader.Overview(ctx, "", 0)
	require.NoError(t, err)
	for _, err := range []error{
		only(reader.Stats(ctx, topic)), only(reader.Ready(ctx, topic)), only(reader.Workers(ctx, topic)),
		only(reader.List(ctx, topic, admin.Query{State: admin.Dead, Group: "a"})), only(reader.Get(ctx, topic, admin.ByID(s.list(t, "a", admin.Dead)[0].ID))),
		only(reader.Upcoming(ctx, topic, admin.Load{Width: time.Hour, Buckets: 2})), only(reader.DeadReasons(ctx, topic, admin.Bulk{Group: "a"})),
		only(reader.PurgeDead(ctx, topic, admin.Bulk{Group: "a", DryRun: true})), only(reader.Check(ctx, topic)),
		only(reader.GroupsWithoutSubscribers(ctx, topic, 0)),
	} {
		require.NoError(t, err)
	}
	for _, err := range []error{
		only(reader.Kill(ctx, topic, admin.GroupMessage{Group: "a", ID: "x"}, admin.KillOptions{})), only(reader.Pause(ctx, topic, admin.PauseOptions{})),
		only(reader.PurgeDead(ctx, topic, admin.Bulk{Group: "a"})), only(reader.RequeueAll(ctx, topic, admin.Bulk{Group: "a"})),
	} {
		require.ErrorIs(t, err, admin.ErrForbidden)
	}

	blind := as("blind", "ACL", "SETUSER", "blind", "on", ">secret", "~own:*", "resetchannels", "+@connection", "+sscan", "+evalsha", "+eval", "+script|load", "+hget", "+hmget", "+hkeys", "+hlen")
	d, err = blind.Diagnose(ctx, admin.DiagnoseOptions{})
	require.NoError(t, err)
	var texts []string
	for _, p := range d.Problems {
		require.Equal(t, admin.Forbidden, p.Kind, p.Text)
		texts = append(texts, p.Text)
	}
	all := strings.Join(texts, "\n")
	require.Contains(t, all, "This Redis user may not look at 1 topic:")
	require.Contains(t, all, "+zcard")
	require.Contains(t, all, "+time")
}

// A node without a replica is waited for once, as long as a call waits.
func TestDiagnoseTellsAboutOtherNodesWhileOneHangs(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), MaxRedirects: -1}) // waits for three seconds
	t.Cleanup(func() { _ = client.Close() })
	s := setupOn(t, redistest.Server{Client: client, Prefix: "own"})
	registry, _ := cluster.Owner(queue.Registry(s.Prefix))
	var hangs *redistest.Instance
	var lost, others []string
	for i := 0; len(lost) < 5 || len(others) < 5; i++ {
		name := fmt.Sprintf("topic-%02d", i)
		owner, _ := cluster.Owner("{" + name + "}")
		if hangs == nil && owner != registry {
			hangs = owner
		}
		to := &others
		if owner == hangs {
			to = &lost
		}
		if *to = append(*to, name); len(*to) > 5 {
			*to = (*to)[:5]
			continue
		}
		require.NoError(t, queue.NewTopic(servers.MustClient(client), s.Prefix, name).Register(ctx, "g", queue.GroupOptions{}))
	}
	_, replica := cluster.Owner("{" + lost[0] + "}")
	replica.Kill()
	hangs.Pause()
	began := time.Now()
	problems, _ := s.diagnose(t, admin.DiagnoseOptions{})
	require.Less(t, time.Since(began), 10*time.Second)
	var unreadable []string
	for _, p := range problems {
		if p.Kind == admin.Unreadable && p.Topic != "" {
			unreadable = append(unreadable, p.Topic)
		}
	}
	slices.Sort(unreadable)
	require.Equal(t, lost, unreadable)
	d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{Topics: others})
	require.NoError(t, err)
	require.Equal(t, 5, d.Topics)
}

// Ten thousand topics, of which half have a problem.
func TestDiagnoseOfTenThousandTopicsIsFast(t *testing.T) {
	t.Parallel()
	s := setupOn(t, redistest.Server{Client: redistest.Start(t).Client(t), Prefix: "own"})
	const n = 10_000
	for i := 0; i < n; {
		_, err := s.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for end := i + 1000; i < end; i++ {
				name := fmt.Sprintf("topic %05d", i)
				k := queue.NewKeys(s.Prefix, name)
				p.SAdd(ctx, queue.Registry(s.Prefix), name)
				p.HSet(ctx, k.Meta(), "layout", queue.Layout, "groups", "x")
				p.HSet(ctx, k.Groups(), "a", "25 -1 -1", "b", "25 -1 -1")
				if i%2 == 0 {
					p.RPush(ctx, k.Ready("a"), "01M7Y3SQGNBVX5P66MY8JV56FH:1000")
					p.ZAdd(ctx, k.Dead("b"), redis.Z{Score: float64(time.Now().UnixMilli()), Member: "x"})
				}
			}
			return nil
		})
		require.NoError(t, err)
	}
	began := time.Now()
	d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
	require.NoError(t, err)
	took := time.Since(began)
	t.Logf("Diagnose took %v for %d topics", took, d.Topics)
	require.Equal(t, n, d.Topics)
	require.GreaterOrEqual(t, len(d.Problems), n)
	// 5 s is promised of a machine that does nothing else; the race detector takes its share.
	require.Less(t, took, time.Minute)
}
