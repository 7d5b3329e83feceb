package admin_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// operation is an operation of an Admin on the topic of newTorn with the groups a, b and idle.
type operation struct {
	name    string // what its errors begin with
	prepare func(w *torn)
	do      func(a *admin.Admin, w *torn) error
}

// ready returns a topic with what the operation needs, under the server's prefix.
func (op *operation) ready(t *testing.T, server redistest.Server) (*setup, *torn) {
	t.Helper()
	s := setupOn(t, server)
	w := newTorn(t, s, "a", "b")
	s.register(t, "idle")
	require.NoError(t, s.Client.HSet(ctx, s.keys.Stats("idle"), "seen", "1").Err())
	if op.prepare != nil {
		op.prepare(w)
	}
	return s, w
}

func everyOperation() []operation {
	all := admin.Bulk{Group: "a"}
	return []operation{
		{name: "list topics", do: func(a *admin.Admin, _ *torn) error {
			_, _, err := a.Topics(ctx, "", 0)
			return err
		}},
		{name: "stats", do: func(a *admin.Admin, _ *torn) error { return last(a.Stats(ctx, topic)) }},
		{name: "list", do: func(a *admin.Admin, _ *torn) error {
			return last(a.List(ctx, topic, admin.Query{State: admin.Ready, Group: "a"}))
		}},
		{name: "list", do: func(a *admin.Admin, w *torn) error {
			page, err := a.List(ctx, topic, admin.Query{State: admin.Dead, Group: "a"})
			if err == nil {
				cursor := fmt.Sprintf("%d:%s", page.Messages[0].Places[0].At.UnixMilli()-1, w.id["dead"])
				err = last(a.List(ctx, topic, admin.Query{State: admin.Dead, Group: "a", Cursor: cursor}))
			}
			return err
		}},
		{name: "get", do: func(a *admin.Admin, w *torn) error { return last(a.Get(ctx, topic, admin.ByID(w.id["retrying"]))) }},
		{name: "get", do: func(a *admin.Admin, _ *torn) error { return last(a.Get(ctx, topic, admin.ByDelayID("waiting"))) }},
		{name: "find", do: func(a *admin.Admin, _ *torn) error {
			return last(a.Find(ctx, admin.Search{Topics: []string{topic}, Filter: admin.Filter{Any: "waiting"}}))
		}},
		{name: "workers", do: func(a *admin.Admin, _ *torn) error { return last(a.Workers(ctx, topic)) }},
		{name: "reasons of dead letters", do: func(a *admin.Admin, _ *torn) error { return last(a.DeadReasons(ctx, topic, all)) }},
		{name: "requeue", do: func(a *admin.Admin, _ *torn) error {
			return last(a.RequeueAll(ctx, topic, admin.Bulk{Group: "a", DryRun: true}))
		}},
		{name: "requeue", do: func(a *admin.Admin, _ *torn) error {
			return last(a.RequeueAll(ctx, topic, admin.Bulk{Group: "a", Spread: time.Hour}))
		}},
		{name: "upcoming", do: func(a *admin.Admin, _ *torn) error {
			return last(a.Upcoming(ctx, topic, admin.Load{Width: time.Minute, Buckets: 2, Group: "a"}))
		}},
		{name: "tail", do: func(a *admin.Admin, _ *torn) error { return tailOnce(ctx, a, topic) }},
		{name: "cancel", do: func(a *admin.Admin, w *torn) error { return a.Cancel(ctx, topic, admin.ByID(w.id["retrying"])) }},
		{name: "cancel", do: func(a *admin.Admin, _ *torn) error { return a.Cancel(ctx, topic, admin.ByDelayID("waiting")) }},
		{name: "reschedule", do: func(a *admin.Admin, _ *torn) error {
			return a.Reschedule(ctx, topic, admin.ByDelayID("waiting"), admin.In(time.Minute))
		}},
		{name: "reschedule", do: func(a *admin.Admin, w *torn) error {
			return a.Reschedule(ctx, topic, admin.ByID(w.id["retrying"]), admin.When{})
		}},
		{name: "reschedule", do: func(a *admin.Admin, w *torn) error {
			return a.Reschedule(ctx, topic, admin.ByID(w.cancelled[0].ID), admin.In(time.Minute))
		}, prepare: func(w *torn) {
			export(w)
			require.NoError(w.t, restore(w.admin, w))
		}},
		{name: "restore", do: restore, prepare: export},
		{name: "requeue", do: func(a *admin.Admin, w *torn) error {
			return a.Requeue(ctx, topic, admin.GroupMessage{Group: "a", ID: w.id["dead"]})
		}},
		{name: "delete", do: func(a *admin.Admin, w *torn) error {
			return a.DeleteDead(ctx, topic, admin.GroupMessage{Group: "a", ID: w.id["dead"]})
		}},
		{name: "requeue", do: func(a *admin.Admin, _ *torn) error { return last(a.RequeueAll(ctx, topic, all)) }},
		{name: "purge", do: func(a *admin.Admin, _ *torn) error { return last(a.PurgeDead(ctx, topic, all)) }},
		{name: "move", do: func(a *admin.Admin, _ *torn) error {
			return last(a.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "another"}))
		},
			prepare: func(w *torn) { require.NoError(w.t, w.publisher(w.t).Publish("another", text("x"))) }},
		{name: "kill", do: func(a *admin.Admin, w *torn) error {
			return last(a.Kill(ctx, topic, admin.GroupMessage{Group: "a", ID: w.id["ready"]}, admin.KillOptions{}))
		}},
		{name: "kill", do: func(a *admin.Admin, w *torn) error {
			return last(a.Kill(ctx, topic, admin.GroupMessage{Group: "a", ID: w.id["waiting"]}, admin.KillOptions{}))
		}},
		{name: "pause", do: func(a *admin.Admin, _ *torn) error { return last(a.Pause(ctx, topic, admin.PauseOptions{})) }},
		{name: "pause", do: func(a *admin.Admin, _ *torn) error {
			return last(a.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("a")}))
		}},
		{name: "resume", do: func(a *admin.Admin, _ *torn) error { return last(a.Resume(ctx, topic, admin.ResumeOptions{})) }, prepare: rest},
		{name: "resume", do: func(a *admin.Admin, _ *torn) error {
			return last(a.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("a")}))
		}, prepare: rest},
		{name: "set the limit", do: func(a *admin.Admin, _ *torn) error {
			return last(a.SetLimit(ctx, topic, "a", admin.Limit{Rate: 10}))
		}},
		{name: "set the history", do: func(a *admin.Admin, _ *torn) error {
			return last(a.SetHistory(ctx, topic, "a", admin.History{Retention: time.Hour}))
		}},
		{name: "reset the history", do: func(a *admin.Admin, _ *torn) error { return last(a.ResetHistory(ctx, topic, "a")) }},
		{name: "history", do: func(a *admin.Admin, _ *torn) error { return last(a.History(ctx, topic, admin.HistoryFilter{})) }},
		{name: "reset the limit", do: func(a *admin.Admin, _ *torn) error { return last(a.ResetLimit(ctx, topic, "a")) }},
		{name: "stats", do: func(a *admin.Admin, _ *torn) error { return last(a.GroupsWithoutSubscribers(ctx, topic, 0)) }},
		{name: "delete idle groups", do: func(a *admin.Admin, _ *torn) error {
			removal, err := a.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: time.Minute})
			if err == nil && !slices.Equal(removal.Groups, []string{"idle"}) {
				err = fmt.Errorf("removed %q", removal.Groups)
			}
			return err
		}},
		{name: "delete group", do: func(a *admin.Admin, _ *torn) error {
			return last(a.DeleteGroup(ctx, topic, "a", admin.DeleteOptions{}))
		}},
		{name: "delete topic", do: func(a *admin.Admin, _ *torn) error { return last(a.DeleteTopic(ctx, topic, admin.DeleteOptions{})) }},
		{name: "ready", do: func(a *admin.Admin, _ *torn) error { return last(a.Ready(ctx, topic)) }},
		{name: "check", do: func(a *admin.Admin, _ *torn) error { return last(a.Check(ctx, topic)) }},
		{name: "check", do: func(a *admin.Admin, _ *torn) error { return last(a.Check(ctx, topic)) }, prepare: beginRemoval},
		{name: "check", do: func(a *admin.Admin, _ *torn) error { return last(a.Check(ctx, topic)) }, prepare: damage},
		{name: "record", do: func(a *admin.Admin, _ *torn) error { return a.Record(ctx, admin.Act{By: "ann", Action: "pause"}) }},
		{name: "set the partitions", do: func(a *admin.Admin, _ *torn) error { return last(a.SetPartitions(ctx, "parcels", 3)) }},
		{name: "acts", do: func(a *admin.Admin, _ *torn) error {
			_, _, err := a.Acts(ctx, "", 0)
			return err
		}},
		{name: "repair", do: func(a *admin.Admin, _ *torn) error {
			repaired, err := a.Repair(ctx, topic)
			if err == nil && len(repaired.Mended) < 5 {
				err = fmt.Errorf("mended only %v, found %v", repaired.Mended, repaired.Findings)
			}
			return err
		}, prepare: damage},
	}
}

func last[T any](_ T, err error) error { return err }

// export lists the message that waits, and cancels it. A retry of another ID is listed with it.
func export(w *torn) {
	waiting := w.whole(w.t, "", admin.Waiting)[0]
	require.NoError(w.t, w.admin.Cancel(ctx, topic, admin.ByID(waiting.ID)))
	stored := *waiting.Stored
	stored.Record, stored.DelayIDUntil = w.whole(w.t, "a", admin.Retrying)[0].Stored.Record, time.Time{}
	id, err := queue.NewIDs().Next(time.Now())
	require.NoError(w.t, err)
	w.cancelled = []admin.Message{waiting, {
		ID: id, Stored: &stored, Places: []admin.Place{{Group: "a", State: admin.Retrying, At: waiting.Places[0].At}},
	}}
}

func restore(a *admin.Admin, w *torn) error {
	done, err := a.Restore(ctx, topic, listed(w.cancelled), admin.Restoring{})
	if err == nil && done.Messages != 2 {
		err = fmt.Errorf("restored %+v", done)
	}
	return err
}

func rest(w *torn) {
	require.NoError(w.t, last(w.admin.Pause(ctx, topic, admin.PauseOptions{})))
	require.NoError(w.t, last(w.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("a")})))
	at := redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "nowhere|1"}
	require.NoError(w.t, w.Client.ZAdd(ctx, w.keys.Resting("a"), at).Err())
	require.NoError(w.t, w.Client.ZAdd(ctx, w.keys.Waiters("a"), at).Err())
}

// beginRemoval is the first step of the removal of a group with many messages.
func beginRemoval(w *torn) {
	require.NoError(w.t, w.Client.HDel(ctx, w.keys.Groups(), "b").Err())
	require.NoError(w.t, w.Client.ZAdd(ctx, w.keys.Idle(), redis.Z{Member: "b"}).Err())
	require.NoError(w.t, w.Client.HSet(ctx, w.keys.Meta(), "groups", queue.Token()).Err())
}

// damage does each kind of damage that Repair mends with separate commands.
func damage(w *torn) {
	require.NoError(w.t, w.Client.SRem(ctx, queue.Registry(w.Prefix), topic).Err())
	require.NoError(w.t, w.Client.Expire(ctx, w.keys.Messages(), time.Hour).Err())
	require.NoError(w.t, w.Client.HSet(ctx, w.keys.Names(), "half", w.id["ready"]).Err())
	require.NoError(w.t, w.Client.RPush(ctx, w.keys.Ready("a"), w.Client.LIndex(ctx, w.keys.Ready("a"), 0).Val()).Err())
	require.NoError(w.t, w.Client.ZRem(ctx, w.keys.Retry("a"), w.id["retrying"]).Err())
	require.NoError(w.t, w.Client.LPop(ctx, w.keys.Ready("b")).Err())
	require.NoError(w.t, w.Client.ZRem(ctx, w.keys.Pending(), w.id["waiting"]).Err())
	require.NoError(w.t, w.Client.HSet(ctx, w.keys.Scheduler(), "next", "9999999999999").Err())
}

// An operation without a permission returns ErrForbidden and changes nothing.
func TestOperationWithoutAPermissionChangesNothing(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	server := redistest.Server{Client: in.Client(t)}
	prefixes := 0
	fixture := func(t *testing.T, op operation) *torn {
		prefixes++
		server.Prefix = fmt.Sprint("own:", prefixes)
		s := setupOn(t, server)
		w := newTorn(t, s, "a", "b")
		s.register(t, "idle")
		require.NoError(t, s.Client.HSet(ctx, s.keys.Stats("idle"), "seen", "1").Err()) // long ago
		if op.prepare != nil {
			op.prepare(w)
		}
		return w
	}
	var documented []string
	for _, rule := range documentedRules(t) {
		command, _, _ := strings.Cut(rule[1:], "|")
		documented = append(documented, command)
	}
	pairs := 0
	for i, op := range everyOperation() {
		t.Run(fmt.Sprint(i+1, " ", op.name), func(t *testing.T) {
			commands := commandsOf(t, op, func() *torn { return fixture(t, op) })
			require.Subset(t, documented, commands)
			w := fixture(t, op) // for all, as none may change it
			before := w.contents()
			for _, command := range commands {
				pairs++
				client := userWithout(t, in, server.Client, command)
				a, err := admin.New(admin.Config{Client: client, KeyPrefix: w.Prefix})
				require.NoError(t, err)
				err = op.do(a, w)
				require.ErrorIs(t, err, admin.ErrForbidden, command)
				require.ErrorIs(t, err, redisdelay.ErrForbidden)
				require.Regexp(t, "^"+op.name, err.Error(), command)
				require.Regexp(t, `[+']`+command+`\b`, err.Error())
				require.Equal(t, before, w.contents(), command)
				if op.prepare == nil {
					report, err := w.admin.Check(ctx, topic)
					require.NoError(t, err)
					require.Empty(t, report.Violations(), command)
				}
				// No connection is left inside a transaction.
				require.Equal(t, "x", client.Echo(ctx, "x").Val(), command)
			}
		})
	}
	t.Logf("%d pairs of operation and command", pairs)
	require.Greater(t, pairs, 200)
}

// userWithout returns the client of a user who may run all commands except one.
func userWithout(t *testing.T, in *redistest.Instance, server redis.UniversalClient, command string) *redis.Client {
	t.Helper()
	require.NoError(t, server.Do(ctx, "ACL", "SETUSER", command, "on", ">secret", "~*", "&*", "+@all", "-"+command).Err())
	client := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: command, Password: "secret", PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// contents returns all keys and values under the prefix.
func (w *torn) contents() map[string]string {
	found := map[string]string{}
	for _, key := range w.Client.Keys(ctx, w.Prefix+":*").Val() {
		found[key] = w.Client.Dump(ctx, key).Val()
		if w.Client.TTL(ctx, key).Val() > 0 {
			found[key] += " expires"
		}
	}
	return found
}

// asked are commands that an operation can do without if they are refused.
var asked = []string{"info", "pexpire", "ping"}

// containers are how Redis 6.2 counts commands like CONFIG RESETSTAT. Later versions count
// config|resetstat.
var containers = []string{"client", "config", "pubsub", "script"}

// commandsOf returns the commands that the server runs for an operation. The operation ran once
// before, so that its check of permissions does not count. No other test uses the server.
func commandsOf(t *testing.T, op operation, fixture func() *torn) []string {
	t.Helper()
	first, second := fixture(), fixture()
	client := redis.NewClient(first.Client.(*redis.Client).Options())
	defer client.Close()
	a, err := admin.New(admin.Config{Client: client, KeyPrefix: first.Prefix})
	require.NoError(t, err)
	require.NoError(t, op.do(a, first))
	client.AddHook(redistest.BeforeEach(func(call redis.Cmder) error {
		for i, arg := range call.Args() {
			if text, ok := arg.(string); ok && strings.HasPrefix(text, first.Prefix+":") {
				call.Args()[i] = second.Prefix + strings.TrimPrefix(text, first.Prefix)
			}
		}
		return nil
	})) // the same Admin, with what it has learned
	require.NoError(t, second.Client.ConfigResetStat(ctx).Err())
	require.NoError(t, op.do(a, second))
	info, err := second.Client.Info(ctx, "commandstats").Result()
	require.NoError(t, err)
	var commands []string
	for line := range strings.Lines(info) {
		name, found := strings.CutPrefix(line, "cmdstat_")
		name, _, _ = strings.Cut(name, ":")
		if found && !strings.Contains(name, "|") && !slices.Contains(containers, name) && !slices.Contains(asked, name) {
			commands = append(commands, name)
		}
	}
	slices.Sort(commands)
	require.NotEmpty(t, commands)
	return commands
}

// The commands in docs/redis-keys.md that create a user and give it further permissions.
const (
	forPrograms = iota
	onAClusterBesides
	withReplicasBesides
	forOperatorsBesides
	documented
)

// documentedCommands returns these commands in shell form, for keys with a prefix.
func documentedCommands(t *testing.T, prefix string) (commands [][]any) {
	t.Helper()
	for _, command := range documentedUsers(t, prefix) {
		if command[2] == "app" {
			commands = append(commands, command)
		}
	}
	require.Len(t, commands, documented)
	return commands
}

// documentedUsers returns all commands in docs/redis-keys.md that are about users.
func documentedUsers(t *testing.T, prefix string) (commands [][]any) {
	t.Helper()
	text, err := os.ReadFile("../docs/redis-keys.md")
	require.NoError(t, err)
	_, access, found := strings.Cut(string(text), "\n## Access\n")
	require.True(t, found)
	access, _, _ = strings.Cut(access, "\n## ")
	for _, block := range regexp.MustCompile("(?s)```sh\nredis-cli (.*?)```").FindAllStringSubmatch(access, -1) {
		words, err := exec.Command("sh", "-c", "printf '%s\n' "+strings.ReplaceAll(block[1], redisdelay.DefaultKeyPrefix, prefix)).Output()
		require.NoError(t, err)
		var command []any
		for _, word := range strings.Fields(string(words)) {
			command = append(command, word)
		}
		require.Equal(t, []any{"ACL", "SETUSER"}, command[:2])
		commands = append(commands, command)
	}
	return commands
}

// documentedRules returns the ACL rules in these commands.
func documentedRules(t *testing.T) (rules []string) {
	t.Helper()
	for _, command := range documentedCommands(t, "own") {
		for _, word := range command {
			if rule := word.(string); strings.HasPrefix(rule, "+") && !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
	}
	return rules
}

// The documented permissions suffice for every operation. The part for programs suffices for most.
func TestTheDocumentedPermissionsAreEnough(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	server := redistest.Server{Client: in.Client(t)}
	commands := documentedCommands(t, "own")
	require.NoError(t, server.Client.Do(ctx, commands[forPrograms]...).Err())
	operator := append([]any{"ACL", "SETUSER", "operator"}, commands[forPrograms][3:]...)
	require.NoError(t, server.Client.Do(ctx, append(operator, commands[forOperatorsBesides][3:]...)...).Err())
	as := func(user, prefix string) *admin.Admin {
		client := redis.NewClient(&redis.Options{Addr: in.Addr(), Username: user, Password: "secret"})
		t.Cleanup(func() { _ = client.Close() })
		a, err := admin.New(admin.Config{Client: client, KeyPrefix: prefix})
		require.NoError(t, err)
		return a
	}
	forOperators := map[string]bool{}
	for i, op := range everyOperation() {
		server.Prefix = fmt.Sprint("own:", i)
		_, w := op.ready(t, server)
		err := op.do(as("app", server.Prefix), w)
		if errors.Is(err, admin.ErrForbidden) {
			forOperators[op.name] = true
			err = op.do(as("operator", server.Prefix), w)
		}
		require.NoError(t, err, op.name)
	}
	require.Equal(t, map[string]bool{"check": true, "repair": true, "delete topic": true, "kill": true, "acts": true, "history": true}, forOperators, "docs/redis-keys.md says so")
}

// On a Cluster the client also asks for the owners of the slots.
func TestTheDocumentedPermissionsAreEnoughOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	sharded := cluster.Nodes()[0].Client(t).Do(ctx, "COMMAND", "INFO", "spublish").Val().([]any)[0] != nil
	let := func(rules ...any) { // each node has users of its own
		if !sharded { // the document says what to leave out
			rules = slices.DeleteFunc(slices.Clone(rules), func(rule any) bool {
				return rule == "+spublish" || rule == "+ssubscribe" || rule == "+sunsubscribe"
			})
		}
		for _, node := range cluster.Nodes() {
			require.NoError(t, node.Client(t).Do(ctx, append([]any{"ACL", "SETUSER", "app"}, rules...)...).Err())
		}
	}
	commands := documentedCommands(t, "own")
	for _, command := range commands {
		let(command[3:]...)
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Username: "app", Password: "secret"})
	defer client.Close()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client, KeyPrefix: "own", WaitReplicas: 1}, nil)
	require.NoError(t, err)
	defer publisher.Close()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client, KeyPrefix: "own"}, nil)
	require.NoError(t, err)
	defer subscriber.Close()
	let("-cluster")
	_, err = subscriber.Subscribe(ctx, "a")
	require.ErrorIs(t, err, redisdelay.ErrForbidden)
	require.ErrorContains(t, err, "the user has to be allowed +cluster")
	if sharded { // Redis 6.2 does not say which part of the command it refused
		require.ErrorContains(t, err, "+cluster|slots")
	}
	let(commands[onAClusterBesides][3:]...)
	for _, topic := range []string{"a", "b", "c", "d", "e"} { // on several nodes
		messages, err := subscriber.Subscribe(ctx, topic)
		require.NoError(t, err)
		msg := message.NewMessage(topic, nil)
		redisdelay.DelayFor(msg, time.Millisecond)
		require.NoError(t, publisher.Publish(topic, msg))
		received := <-messages
		require.Equal(t, topic, received.UUID)
		require.True(t, received.Ack())
	}
}

// The target topic is not created if there is nothing to move, or if that is forbidden.
func TestMoveDeadToATopicThatIsForbidden(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t)
	w := newTorn(t, setupOn(t, redistest.Server{Client: in.Client(t), Prefix: "own"}), "a")
	client := userWithout(t, in, w.Client, "rpush")
	a, err := admin.New(admin.Config{Client: client, KeyPrefix: w.Prefix})
	require.NoError(t, err)
	before := w.contents()
	n, err := a.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "another", Filter: admin.Filter{Reason: "no such reason"}})
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, before, w.contents())

	n, err = a.MoveDead(ctx, topic, admin.Bulk{Group: "a", To: "another"})
	require.ErrorIs(t, err, admin.ErrForbidden)
	require.ErrorContains(t, err, `to topic "another"`)
	require.Zero(t, n)
	require.Len(t, w.list(t, "a", admin.Dead), 1)
	_, err = w.admin.Stats(ctx, "another")
	require.ErrorIs(t, err, admin.ErrNotFound)
}

// Each operation on a full server works, or says that the server is full.
func TestOperationsOnAFullServer(t *testing.T) {
	t.Parallel()
	server := redistest.Server{Client: redistest.Start(t).Client(t)}
	refused := map[string]bool{}
	for i, op := range everyOperation() {
		server.Prefix = fmt.Sprint("own:", i)
		s, w := op.ready(t, server)
		require.NoError(t, server.Client.ConfigSet(ctx, "maxmemory", "1").Err())
		if err := op.do(s.admin, w); err != nil {
			require.ErrorIs(t, err, admin.ErrServerFull, op.name)
			require.ErrorIs(t, err, redisdelay.ErrServerFull)
			refused[op.name] = true
		}
		require.NoError(t, server.Client.ConfigSet(ctx, "maxmemory", "0").Err())
	}
	t.Logf("refused: %v", refused)
	require.True(t, refused["move"])
	require.False(t, refused["check"], "it only reads")
}

// A server without PUBSUB is like a user who may not ask who is connected: the lease alone counts.
func TestReadyOnAServerWithoutPubSubNumSub(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t, "--rename-command", "PUBSUB", "")
	s := setupOn(t, redistest.Server{Client: in.Client(t), Prefix: "own"})
	s.register(t, "a")
	require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Hour)))
	_, err := s.subscriber(t, "a").Subscribe(ctx, topic)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.readiness(t).Scheduled }, soon, time.Millisecond)
}
