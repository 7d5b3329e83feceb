package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

const rightsDocument = "../../docs/operations.md"

// redisRoles are the users in the document, in its order.
var redisRoles = []string{"publisher", "subscriber", "scheduler", "reader", "operator"}

// documentedUsers returns the commands that make the users in the document, and the rules besides.
func documentedUsers(t *testing.T) (users map[string][]any, onCluster [][]any) {
	t.Helper()
	text, err := os.ReadFile(rightsDocument)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Who may do what\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	users = map[string][]any{}
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		for _, line := range strings.Split(strings.ReplaceAll(block[1], "\\\n", ""), "\n") {
			rest, ok := strings.CutPrefix(line, "redis-cli ")
			if !ok {
				require.Empty(t, strings.TrimSpace(line))
				continue
			}
			words, err := exec.Command("sh", "-c", "printf '%s\n' "+rest).Output()
			require.NoError(t, err)
			var command []any
			for _, word := range strings.Fields(string(words)) {
				require.NotRegexp(t, `^\+@|^allkeys|^~\*$|^&\*$`, word, "each command is named")
				command = append(command, word)
			}
			if command[2] == "ROLE" {
				onCluster = append(onCluster, command)
			} else {
				users[command[2].(string)] = command
			}
		}
	}
	require.Len(t, users, len(redisRoles))
	require.Len(t, onCluster, 4)
	return users, onCluster
}

// holder is a Redis user of a role, over a database of its own.
type holder struct {
	*world
	role   string
	db     int
	client redis.UniversalClient // as this user
	ids    map[string]string
}

// tool runs a command of the tool as the user, and returns an error if Redis refuses it.
func (h *holder) tool(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return h.until(ctx, args...)
}

func (h *holder) until(ctx context.Context, args ...string) error {
	var out, errs syncBuffer
	environment := []string{"REDISDELAY_REDIS=" + h.addr, "REDISDELAY_REDIS_USERNAME=" + h.role, "REDISDELAY_REDIS_PASSWORD=secret", fmt.Sprint("REDISDELAY_REDIS_DB=", h.db)}
	status := run(ctx, args, system{environment: environment, stdin: strings.NewReader("one line\n"), stdout: &out, stderr: &errs})
	said := out.String() + errs.String()
	switch {
	case regexp.MustCompile(`forbidden|NOPERM|not in the audit log`).MatchString(said):
		return fmt.Errorf("%w: %s", errForbidden, said)
	case status != 0 && args[0] != "doctor" && ctx.Err() == nil:
		return fmt.Errorf("it failed: %s", said)
	}
	return nil
}

var errForbidden = errors.New("refused by Redis")

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(text)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// raw sends a command as the user.
func (h *holder) raw(args ...any) error {
	err := h.client.Do(h.t.Context(), args...).Err()
	// Redis words a refusal inside of a script in its own ways.
	if err != nil && regexp.MustCompile(`NOPERM|ACL failure|user executing the script can't`).MatchString(err.Error()) {
		return errForbidden
	}
	return err
}

// subscribes has a subscriber of the library get a message.
func (h *holder) subscribes() error {
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: h.client, ConsumerGroup: "rights", CloseTimeout: time.Second}, nil)
	require.NoError(h.t, err)
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(h.t.Context(), "subscribed")
	if errors.Is(err, redisdelay.ErrForbidden) {
		return errForbidden
	}
	require.NoError(h.t, err)
	for _, settle := range []func(*message.Message){func(m *message.Message) { redisdelay.DelayFor(m, time.Millisecond); m.Nack() }, func(m *message.Message) { m.Ack() }} {
		if settle != nil {
			h.publishOnce("subscribed")
		}
		settle(<-messages)
	}
	(<-messages).Ack() // the one that failed
	return nil
}

func (h *holder) publishOnce(topic string) {
	h.publish(topic, "u", "x", redisdelay.DelayKey, "5ms")
}

// publishes has a publisher of the library publish, for later and at once.
func (h *holder) publishes() error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: h.client}, nil)
	require.NoError(h.t, err)
	defer publisher.Close()
	for _, delay := range []string{"1h", "1ms"} {
		msg := message.NewMessage("new", []byte("x"))
		msg.Metadata.Set(redisdelay.DelayKey, delay)
		redisdelay.SetDelayID(msg, "named", redisdelay.DelayIDReplace)
		if err := publisher.Publish("new-of-"+h.role, msg); errors.Is(err, redisdelay.ErrForbidden) {
			return errForbidden
		} else if err != nil {
			return err
		}
	}
	return nil
}

// serves runs a command that serves until it is stopped, and asks it for pages.
func (h *holder) serves(command string, pages ...string) error {
	ctx, stop := context.WithCancel(h.t.Context())
	defer stop()
	port := freePort(h.t)
	ended := make(chan error, 1)
	go func() { ended <- h.until(ctx, strings.Fields(command+" --listen 127.0.0.1:"+port)...) }()
	var refused error
	for _, page := range pages {
		require.Eventually(h.t, func() bool {
			answer, err := http.Get("http://127.0.0.1:" + port + page)
			if err != nil {
				return false
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			switch {
			case err != nil:
				return false
			case strings.Contains(string(body), "may not do that") || strings.Contains(string(body), "_up 0"):
				refused = errForbidden
			case answer.StatusCode != http.StatusOK:
				refused = fmt.Errorf("%s: %d %s", page, answer.StatusCode, body)
			}
			return true
		}, patience, 10*time.Millisecond, page)
	}
	stop()
	return errors.Join(refused, <-ended)
}

// schedules runs the command schedule until it has made a message ready.
func (h *holder) schedules(args ...string) error {
	ctx, stop := context.WithTimeout(h.t.Context(), patience)
	defer stop()
	h.group("scheduled", "g")
	h.publish("scheduled", "due", "x", redisdelay.DelayKey, "1ms")
	ended := make(chan error, 1)
	go func() { ended <- h.until(ctx, append([]string{"schedule"}, args...)...) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(5 * time.Millisecond):
			stats, err := h.admin.Stats(ctx, "scheduled")
			require.NoError(h.t, err)
			if stats.Groups[0].Ready > 0 {
				stop()
				return <-ended
			}
		}
	}
}

// redisActs are the acts in the table. A name is what stands in its code spans.
func (h *holder) redisActs() map[string]func() error {
	tool := func(args string) func() error {
		return func() error {
			return h.tool(strings.Fields(strings.NewReplacer("ID", h.ids["0"], "DEAD", h.ids["1"]).Replace(args))...)
		}
	}
	raw := func(args ...any) func() error { return func() error { return h.raw(args...) } }
	return map[string]func() error{
		"Publisher.Publish": h.publishes, "publish": tool("publish orders"),
		"Subscriber.Subscribe": h.subscribes, "tail": tool("tail tailed --for 200ms"),
		"schedule": func() error { return h.schedules("scheduled") },
		"doctor":   tool("doctor"), "top": tool("top --once --interval 100ms"), "topics": tool("topics"), "groups idle": tool("groups idle"),
		"topics TOPIC": tool("topics orders"), "groups ls": tool("groups ls orders"), "upcoming": tool("upcoming orders"), "dead reasons": tool("dead reasons orders"),
		"dead ls": tool("dead ls orders"), "dead export": tool("dead export orders"), "msg ls": tool("msg ls orders"), "msg get": tool("msg get orders named"), "find": tool("find named --topic orders --limit 1"),
		"memory": tool("memory"), "ignore": tool("ignore persistence --why x"), "unignore": func() error {
			_, err := h.world.admin.Ignore(h.t.Context(), admin.Ignored{Kind: admin.Persistence, By: "ann", Why: "x"})
			require.NoError(h.t, err)
			return h.tool("unignore", "persistence")
		},
		"workers": tool("workers orders"), "check": tool("check orders"), "audit": tool("audit"), "schedules ls": tool("schedules ls reports"),
		"schedules show": tool("schedules show reports clean-up"),
		"metrics":        func() error { return h.serves("metrics", "/readyz", "/metrics") },
		"ui": func() error {
			return h.serves("ui --contents", "/", "/topic?t=orders", "/audit", "/schedules", "/message?t=orders&id="+h.ids["0"], "/messages?t=orders")
		},
		"pause": tool("pause orders"), "resume": tool("resume orders"), "msg now": tool("msg now orders now"), "msg cancel": tool("msg cancel orders gone --yes"),
		"msg cancel --all": tool("msg cancel tailed --all --yes"), "msg reschedule --all": tool("msg reschedule tailed --all --in 3h --yes"),
		"msg import": tool("msg import moving testdata/waits.ndjson --yes"), "msg reschedule": tool("msg reschedule orders named --in 2h"), "msg kill": tool("msg kill orders killed --yes"),
		"workers release": func() error {
			workers, err := h.world.admin.Workers(h.t.Context(), "orders")
			require.NoError(h.t, err)
			return h.tool("workers", "release", "orders", workers[0].Subscription, "--yes")
		},
		"dead requeue": tool("dead requeue orders --yes ID"), "dead purge": tool("dead purge orders --yes DEAD"), "dead move": tool("dead move moving --to moved --create --yes"),
		"topics move": tool("topics move moving --to moved --create --yes"), "msg move": tool("msg move moving --to moved --create --all --yes"),
		"groups rm": tool("groups rm old g --yes"), "topics rm": tool("topics rm old --yes"), "repair": tool("repair broken --yes"),
		"schedules pause": tool("schedules pause reports clean-up"), "schedules resume": tool("schedules resume reports clean-up"),
		"schedules run": tool("schedules run reports clean-up --yes --wait 0"), "schedules rm": tool("schedules rm reports clean-up --yes"),
		"partitions set": tool("partitions set parcels 3"), "groups limit": tool("groups limit orders billing --rate 5/s"),
		"groups history": tool("groups history orders billing --keep 1h"), "history": tool("history orders"),
		"CLIENT PAUSE": raw("client", "pause", 1), "CLIENT KILL": raw("client", "kill", "type", "normal", "skipme", "yes"), "CLIENT LIST": raw("client", "list"),
		"KEYS": raw("keys", "*"), "FLUSHALL": raw("flushall"), "FLUSHDB": raw("flushdb"), "CONFIG GET": raw("config", "get", "*"), "CONFIG SET": raw("config", "set", "maxmemory", 0),
		"EVAL of another key":  raw("eval", "return redis.call('get', KEYS[1])", 1, "other:key"),
		"EVAL of a hidden key": raw("eval", "return redis.call('get', 'other:key')", 0),
		"GET of another key":   raw("get", "other:key"), "SCAN": raw("scan", 0), "MONITOR": raw("monitor"), "SHUTDOWN": raw("shutdown", "nosave"),
		"ACL WHOAMI": raw("acl", "whoami"), "ACL LIST": raw("acl", "list"), "SCRIPT FLUSH": raw("script", "flush"), "SCRIPT KILL": raw("script", "kill"),
		"PUBLISH on another channel": raw("publish", "other", "x"), "REPLICAOF": raw("replicaof", "no", "one"),
	}
}

// furnish makes the topics that the acts are about.
func (h *holder) furnish() {
	h.bury("orders", "billing", 5)
	h.bury("moving", "billing", 1)
	h.subscribe("orders", redisdelay.SubscriberConfig{ConsumerGroup: "billing"})
	for _, name := range []string{"named", "now", "gone", "killed"} {
		h.publish("orders", name, "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, name)
	}
	h.publish("tailed", "t", "x", redisdelay.DelayKey, "1h")
	h.group("old", "g")
	h.publish("old", "u", "x", redisdelay.DelayKey, "1h")
	h.publish("broken", "u", "x", redisdelay.DelayKey, "1h")
	require.NoError(h.t, h.world.client.HSet(h.t.Context(), "redisdelay:{broken}:messages", "01M7Y3SQGNBVX5P66MY8JV56FH", "lost").Err())
	h.recur(h.fromFile("testdata/schedules.yaml")...)
	h.ids = map[string]string{"0": h.id0("orders", "0"), "1": h.id0("orders", "1")}
}

func (h *holder) id0(topic, uuid string) string {
	h.t.Helper()
	a := newApp(system{})
	a.out = newOutput(a.sys, false)
	m, _, err := a.find(h.t.Context(), h.admin, topic, uuid, naming{by: "uuid"})
	require.NoError(h.t, err)
	return m.ID
}

// The users in docs/operations.md may do what its table says, and nothing else.
func TestRedisUsersMayDoWhatTheTableSays(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--acllog-max-len", "1000")
	owner := server.Client(t)
	users, _ := documentedUsers(t)
	var holders []*holder
	for i, role := range redisRoles {
		require.NoError(t, owner.Do(t.Context(), users[role]...).Err(), role)
		own := func(o *redis.Options) *redis.Client {
			o.Addr, o.DB = server.Addr(), i+1
			c := redis.NewClient(o)
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		h := &holder{world: newWorld(t, own(&redis.Options{}), server.Addr()), role: role, db: i + 1, client: own(&redis.Options{Username: role, Password: "secret"})}
		h.furnish()
		holders = append(holders, h)
	}
	requireMatrix(t, "redis-rights", redisRoles, func(act string) []string {
		cells := make([]string, len(holders))
		for i, h := range holders {
			do := h.redisActs()[act]
			require.NotNil(t, do, "the test has no act %q", act)
			require.NoError(t, owner.Do(t.Context(), "acl", "log", "reset").Err())
			err := do()
			switch {
			case err == nil:
				cells[i] = "yes"
				if denied := deniedTo(t, owner, h.role); len(denied) > 0 {
					t.Errorf("%s: %s works, and something in it is refused: %v", h.role, act, denied)
				}
			case errors.Is(err, errForbidden):
				cells[i] = "no"
				t.Logf("%s: %s: %v", h.role, act, err)
			default:
				cells[i] = "?"
				t.Errorf("%s: %s: %v", h.role, act, err)
			}
		}
		return cells
	}, redisRows)
}

var optional = regexp.MustCompile(`setinfo|maint_notifications|object[: ]client[ \]]`)

// deniedTo returns what the server refused a user, from ACL LOG. go-redis asks for CLIENT SETINFO
// and CLIENT MAINT_NOTIFICATIONS, and goes on without. Redis 6.2 does not name what follows CLIENT.
func deniedTo(t *testing.T, owner redis.UniversalClient, user string) (denied []string) {
	t.Helper()
	log, err := owner.Do(t.Context(), "acl", "log").Slice()
	require.NoError(t, err)
	for _, entry := range log {
		text := fmt.Sprint(entry)
		if strings.Contains(text, "username:"+user) || strings.Contains(text, "username "+user) {
			if !optional.MatchString(text) {
				denied = append(denied, text)
			}
		}
	}
	return denied
}

// redisRows are the rows of the table, for UPDATE=1.
var redisRows = []string{
	"`Publisher.Publish`, `publish`", "`Subscriber.Subscribe`", "`memory`", "`tail`",
	"`topics TOPIC`, `groups ls`, `msg ls`, `dead ls`, `dead export`, `dead reasons`, `msg get`, `find`, `upcoming`",
	"`topics`, `groups idle`, `top`, `workers`, `check`, `audit`, `history`, `schedules ls`, `schedules show`, `doctor`", "`metrics`, `ui`",
	"`groups limit`, `groups history`, `schedules pause`, `schedules resume`, `partitions set`", "`schedule`, `ignore`, `unignore`",
	"`pause`, `resume`, `msg now`, `msg reschedule`, `msg reschedule --all`, `msg cancel`, `msg cancel --all`, `msg import`, `msg kill`, `dead requeue`, `dead purge`, `dead move`, `topics move`, `msg move`, `groups rm`, `topics rm`, `workers release`",
	"`schedules run`, `schedules rm`, `repair`",
	"`CLIENT PAUSE`, `CLIENT KILL`, `CLIENT LIST`, `KEYS`, `SCAN`, `FLUSHALL`, `FLUSHDB`, `CONFIG GET`, `CONFIG SET`, `ACL LIST`, `MONITOR`, `SHUTDOWN`, `SCRIPT FLUSH`, `SCRIPT KILL`, `REPLICAOF`",
	"`GET of another key`, `EVAL of another key`, `EVAL of a hidden key`, `PUBLISH on another channel`",
}

// requireMatrix tries each act in a table of a document, and compares what came of it with the
// cells. All acts in a row have the same cells.
func requireMatrix(t *testing.T, name string, columns []string, try func(act string) []string, rows []string) {
	t.Helper()
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->"
	text, err := os.ReadFile(rightsDocument)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), begin)
	require.True(t, found)
	section, _, _ = strings.Cut(section, end)
	tried := map[string][]string{}
	if updates { // acts with the same cells share a row
		rows = grouped(rows, func(act string) string {
			tried[act] = try(act)
			return strings.Join(tried[act], " ")
		})
	} else {
		rows = nil
		for _, line := range strings.Split(section, "\n")[2:] {
			if cells := strings.Split(line, "|"); len(cells) > 2 {
				rows = append(rows, strings.TrimSpace(cells[1]))
			}
		}
	}
	require.NotEmpty(t, rows)
	want := "| | " + strings.Join(columns, " | ") + " |\n|---" + strings.Repeat("|---", len(columns)) + "|\n"
	for _, row := range rows {
		var cells []string
		for _, act := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
			got := tried[act[1]]
			if got == nil {
				got = try(act[1])
			}
			if cells == nil {
				cells = got
			}
			require.Equal(t, cells, got, "%s differs from others of its row", act[1])
		}
		want += "| " + row + " | " + strings.Join(cells, " | ") + " |\n"
	}
	requireSection(t, rightsDocument, begin, end, want)
}

// mostOfRow is how many acts a row has, so that it can be read.
const mostOfRow = 20

// grouped returns rows of the acts in some rows that have the same cells.
func grouped(rows []string, cells func(act string) string) (all []string) {
	at := map[string]int{}
	for _, act := range regexp.MustCompile("`[^`]+`").FindAllString(strings.Join(rows, " "), -1) {
		key := cells(strings.Trim(act, "`"))
		if i, known := at[key]; known && strings.Count(all[i], ",")+1 < mostOfRow {
			all[i] += ", " + act
		} else {
			at[key] = len(all)
			all = append(all, act)
		}
	}
	return all
}

// On a Cluster, the roles do their work with the lines for it.
func TestRedisUsersOfAClusterDoTheirWork(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	users, lines := documentedUsers(t)
	sharded := cluster.Nodes()[0].Client(t).Do(t.Context(), "COMMAND", "INFO", "spublish").Val().([]any)[0] != nil
	for _, node := range cluster.Nodes() {
		for _, role := range redisRoles {
			require.NoError(t, node.Client(t).Do(t.Context(), users[role]...).Err())
			for i, line := range lines {
				takes := []bool{true, role != "publisher", role != "reader", role != "publisher" && role != "reader"}[i]
				if takes && (i < 2 || sharded) {
					command := slices.Clone(line)
					command[2] = role
					require.NoError(t, node.Client(t).Do(t.Context(), command...).Err())
				}
			}
		}
	}
	as := func(role string) redis.UniversalClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), Username: role, Password: "secret"})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	environment := func(role string) []string {
		return []string{"REDISDELAY_REDIS=" + strings.Join(cluster.Addrs(), ","), "REDISDELAY_REDIS_USERNAME=" + role, "REDISDELAY_REDIS_PASSWORD=secret"}
	}
	tool := func(ctx context.Context, role string, args ...string) (status int, said string) {
		var out, errs syncBuffer
		status = run(ctx, args, system{environment: environment(role), stdin: strings.NewReader("x\n"), stdout: &out, stderr: &errs})
		return status, out.String() + errs.String()
	}
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: as("publisher")}, nil)
	require.NoError(t, err)
	defer publisher.Close()
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: as("subscriber"), ConsumerGroup: "g"}, nil)
	require.NoError(t, err)
	defer subscriber.Close()
	running, stop := context.WithCancel(t.Context())
	scheduled := make(chan string, 1)
	go func() {
		_, said := tool(running, "scheduler", "schedule")
		scheduled <- said
	}()
	for _, topic := range []string{"a", "b", "c", "d", "e"} { // on several nodes
		messages, err := subscriber.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		msg := message.NewMessage(topic, nil)
		redisdelay.DelayFor(msg, 10*time.Millisecond)
		require.NoError(t, publisher.Publish(topic, msg))
		received := <-messages
		require.Equal(t, topic, received.UUID)
		received.Ack()
	}
	for _, args := range []string{"topics", "workers", "check", "audit"} {
		status, said := tool(t.Context(), "reader", args)
		require.Zero(t, status, "%s: %s", args, said)
	}
	for _, args := range []string{"pause a", "resume a", "publish a", "groups rm a g --yes", "topics rm b --yes", "repair c --yes"} {
		status, said := tool(t.Context(), "operator", strings.Fields(args)...)
		require.Zero(t, status, "%s: %s", args, said)
	}
	status, said := tool(t.Context(), "reader", "pause", "a")
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "forbidden")
	stop()
	require.NotContains(t, <-scheduled, "forbidden")
	for _, node := range cluster.Nodes() {
		for _, role := range redisRoles {
			if role != "reader" { // its last act was refused
				require.Empty(t, deniedTo(t, node.Client(t), role), role)
			}
			asks := redis.NewClient(&redis.Options{Addr: node.Addr(), Username: role, Password: "secret"})
			if role != "publisher" { // the others see who is connected to a mailbox
				require.NoError(t, asks.PubSubNumSub(t.Context(), "redisdelay:mailbox:x").Err(), role)
				if sharded {
					require.NoError(t, asks.PubSubShardNumSub(t.Context(), "redisdelay:mailbox:x").Err(), role)
				}
			}
			require.NoError(t, asks.Close())
			for _, refused := range [][]any{{"client", "pause", 1}, {"client", "list"}, {"keys", "*"}, {"flushall"}, {"config", "get", "*"}, {"cluster", "reset"}, {"cluster", "failover"}} {
				c := redis.NewClient(&redis.Options{Addr: node.Addr(), Username: role, Password: "secret"})
				require.True(t, redis.HasErrorPrefix(c.Do(t.Context(), refused...).Err(), "NOPERM"), "%s: %v", role, refused)
				require.NoError(t, c.Close())
			}
		}
	}
}

// pageUsers are the columns of the table of the page, with the settings of ui that make them.
var pageUsers = []struct{ name, settings string }{
	{"nobody", "--ui-user ann --write --contents"}, {"viewer", ""}, {"viewer with contents", "--contents"}, {"operator", "--write"},
	{"operator with contents", "--write --contents"},
}

// guest is a user of a page.
type guest struct {
	*holder
	address string
}

func (g *guest) asks(method, path string, form ...string) (status int, body string) {
	g.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(form); i += 2 {
		values.Set(form[i], form[i+1])
	}
	return g.request(method, path, "application/x-www-form-urlencoded", values.Encode())
}

// sends sends a file.
func (g *guest) sends(path, file string) (status int, body string) {
	g.t.Helper()
	return g.request(http.MethodPost, path, "multipart/form-data; boundary=x",
		"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"+file+"\r\n--x--\r\n")
}

func (g *guest) request(method, path, kind, content string) (status int, body string) {
	g.t.Helper()
	r, err := http.NewRequest(method, g.address+path, strings.NewReader(content))
	require.NoError(g.t, err)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Origin", strings.TrimSuffix(g.address, "/"))
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	answer, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(r)
	require.NoError(g.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(g.t, err)
	return answer.StatusCode, string(text)
}

// allowed returns the error that stands for an answer.
func allowed(status int, body string) error {
	switch status {
	case http.StatusOK, http.StatusSeeOther:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return errForbidden
	default:
		return fmt.Errorf("%d: %s", status, body)
	}
}

func (g *guest) pageActs() map[string]func() error {
	get := func(path string) func() error {
		return func() error { return allowed(g.asks(http.MethodGet, path)) }
	}
	post := func(path string, form ...string) func() error {
		return func() error { return allowed(g.asks(http.MethodPost, path, form...)) }
	}
	many := func(do, topic string, count string, form ...string) func() error {
		return post("confirm", append([]string{"do", do, "t", topic, "count", count, "typed-count", count, "typed-name", topic}, form...)...)
	}
	message := "message?t=orders&id=" + g.ids["0"]
	return map[string]func() error{
		"topics": get(""), "topic": get("topic?t=orders"), "messages": get("messages?t=orders"), "message": get(message), "reasons": get("dead?t=orders&g=billing"),
		"schedules": get("schedules"), "audit log": get("audit"), "problems": get("problems"), "memory": get("memory"), "check": post("check", "t", "orders"),
		"payload": func() error {
			status, body := g.asks(http.MethodGet, message)
			if err := allowed(status, body); err != nil || strings.Contains(body, "<h2>Payload") && strings.Contains(body, "<h2>Metadata") {
				return err
			}
			return errForbidden
		},
		"export dead letters": get("export?t=orders&g=billing"),
		"import dead letters": func() error {
			return allowed(g.sends("import?t=orders", `{"id":"1","group":"billing","uuid":"u","died_at":"2026-11-01T00:00:00.000Z"}`))
		},
		"search by metadata": get("messages?t=orders&key=kind&value=x"),
		"find a message":     get("find?q=x"), "find by payload": get("find?q=x&by=text"), "find by metadata": get("find?q=kind%3Dx&by=metadata"),
		"pause": post("pause", "t", "orders"), "resume": post("resume", "t", "orders"),
		"limit a group": post("limit/set", "t", "orders", "g", "billing", "rate", "5/s"),
		"deliver now":   post("message/now", "t", "orders", "id", g.named("now")), "reschedule": post("message/later", "t", "orders", "id", g.named("named"), "in", "2h"),
		"cancel": post("message/cancel", "t", "orders", "id", g.named("gone")), "kill": post("message/kill", "t", "orders", "g", "billing", "id", g.named("killed")),
		"requeue": post("message/requeue", "t", "orders", "g", "billing", "id", g.ids["0"]), "delete": post("message/delete", "t", "orders", "g", "billing", "id", g.ids["1"]),
		"requeue many": many("requeue", "orders", "1", "g", "billing"), "purge many": many("purge", "orders", "1", "g", "billing"),
		"move many": many("move", "orders", "1", "g", "billing", "to", "moved"), "remove a group": many("remove-group", "old", "1", "g", "g"),
		"remove a topic": many("remove-topic", "doomed", "1"), "reschedule many": many("reschedule", "doomed", "1", "in", "2h"),
		"move messages to a topic": many("move-messages", "orders", "0", "to", "moved", "create", "on", "state", "waiting", "uuid", "none"),
		"deliver many now":         many("deliver-now", "waits many", "1"), "cancel many": many("cancel", "waits many", "1"),
		"repair": func() error {
			if err := post("check", "t", "broken")(); err != nil {
				return err
			}
			for {
				status, body := g.asks(http.MethodPost, "confirm", "do", "repair", "t", "broken", "count", "9", "typed-count", "9", "typed-name", "broken")
				if !strings.Contains(body, "Check the topic first") && !strings.Contains(body, "is being checked") {
					return allowed(status, body)
				}
				time.Sleep(10 * time.Millisecond)
			}
		},
		"keep a history": post("history/set", "t", "orders", "g", "billing", "keep", "1h"),
		"release a consumer": func() error {
			workers, err := g.world.admin.Workers(g.t.Context(), "orders")
			require.NoError(g.t, err)
			return post("release", "t", "orders", "g", "billing", "w", workers[0].Name())()
		},
		"pause a schedule": post("schedule/pause", "t", "reports", "s", "clean-up"), "resume a schedule": post("schedule/resume", "t", "reports", "s", "clean-up"),
		"ignore a problem": post("problems/ignore", "kind", "persistence", "why", "x"),
		"end that it is ignored": func() error {
			status, body := g.asks(http.MethodPost, "problems/unignore", "kind", "persistence")
			if status == http.StatusNotFound {
				return nil // it would end
			}
			return allowed(status, body)
		},
		"run a schedule":    post("schedule/run", "t", "reports", "s", "clean-up"),
		"remove a schedule": post("confirm", "do", "remove-schedule", "t", "reports", "s", "clean-up", "count", "99", "typed-count", "99", "typed-name", "clean-up"),
		"stop an operation": func() error {
			status, body := g.asks(http.MethodPost, "job/stop", "id", "none")
			if status == http.StatusNotFound {
				return nil // it would be stopped
			}
			return allowed(status, body)
		},
	}
}

func (g *guest) named(name string) string {
	g.t.Helper()
	return g.ids[name]
}

var pageRows = []string{
	"`topics`, `topic`, `messages`, `message`, `reasons`, `schedules`, `problems`, `memory`, `audit log`, `find a message`", "`payload`, `search by metadata`, `find by metadata`, `find by payload`, `export dead letters`, `import dead letters`", "`check`",
	"`pause`, `resume`, `limit a group`, `keep a history`, `release a consumer`, `deliver now`, `reschedule`, `cancel`, `kill`, `requeue`, `delete`",
	"`reschedule many`, `deliver many now`, `cancel many`, `move messages to a topic`, `ignore a problem`, `end that it is ignored`",
	"`requeue many`, `move many`, `purge many`, `remove a group`, `remove a topic`, `repair`, `stop an operation`",
	"`pause a schedule`, `resume a schedule`, `run a schedule`, `remove a schedule`",
}

// The users of the page may do what the table in docs/operations.md says.
func TestUsersOfThePageMayDoWhatTheTableSays(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var guests []*guest
	var columns []string
	for i, user := range pageUsers {
		c := redis.NewClient(&redis.Options{Addr: server.Addr(), DB: i + 1})
		t.Cleanup(func() { _ = c.Close() })
		h := &holder{world: newWorld(t, c, server.Addr()), db: i + 1}
		h.furnish()
		h.publish("doomed", "u", "x", redisdelay.DelayKey, "1h")
		h.publish("waits many", "1", "x", redisdelay.DelayKey, "1h")
		h.publish("waits many", "2", "x", redisdelay.DelayKey, "1h")
		for _, name := range []string{"named", "now", "gone", "killed"} {
			h.ids[name] = h.id0("orders", name)
		}
		environment := []string{"REDISDELAY_REDIS=" + server.Addr(), fmt.Sprint("REDISDELAY_REDIS_DB=", i+1)}
		if user.name == "nobody" {
			environment = append(environment, "REDISDELAY_UI_PASSWORD=tea")
		}
		_, address := page(t, environment, strings.Fields(user.settings)...)
		guests, columns = append(guests, &guest{h, address}), append(columns, user.name)
	}
	requireMatrix(t, "page-rights", columns, func(act string) []string {
		cells := make([]string, len(guests))
		for i, g := range guests {
			do := g.pageActs()[act]
			require.NotNil(t, do, "the test has no act %q", act)
			switch err := do(); {
			case err == nil:
				cells[i] = "yes"
			case errors.Is(err, errForbidden):
				cells[i] = "no"
			default:
				cells[i] = "?"
				t.Errorf("%s: %s: %v", columns[i], act, err)
			}
		}
		return cells
	}, pageRows)
}
