package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// at runs a command with an environment of its own.
func at(t *testing.T, environment []string, args ...string) (status int, out, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stdout, stderr strings.Builder
	status = run(ctx, args, system{environment: environment, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr})
	return status, stdout.String(), stderr.String()
}

// Tests that run commands at the same time log for themselves.
func TestOnlyMainSetsTheLoggerOfTheProcess(t *testing.T) {
	t.Parallel()
	before := slog.Default()
	_, _, _ = at(t, nil, "topics", "--redis", "127.0.0.1:1")
	require.Same(t, before, slog.Default())
}

// tlsProxy is a proxy that speaks TLS, before a server that does not.
func tlsProxy(t *testing.T, addr string) string {
	t.Helper()
	files := newCertificates(t)
	pair, err := tls.LoadX509KeyPair(files.serverCert, files.serverKey)
	require.NoError(t, err)
	return serving(t, func(client net.Conn) {
		secure := tls.Server(client, &tls.Config{Certificates: []tls.Certificate{pair}})
		defer secure.Close()
		if secure.Handshake() != nil {
			return
		}
		server, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		defer server.Close()
		go func() {
			_, _ = io.Copy(server, secure)
			_ = server.Close()
		}()
		_, _ = io.Copy(secure, server)
	})
}

// If one side speaks TLS and the other does not, a command says which, within two seconds.
func TestTLSOnOneSideIsNamed(t *testing.T) {
	t.Parallel()
	require.Less(t, shakeFor+probeFor, 2*time.Second, "what a command waits for at most")
	server := redistest.Start(t)
	plain := server.Addr()
	secure := tlsProxy(t, plain)
	mute, _ := silent(t)
	for _, c := range []struct{ redis, more, want string }{
		{plain, "--redis-tls", plain + " does not speak TLS: leave out --redis-tls"},
		{"rediss://" + plain, "", plain + " does not speak TLS: leave out --redis-tls, or use redis://"},
		{secure, "", secure + " speaks TLS: set --redis-tls, or use rediss://"},
	} {
		for _, command := range []string{"doctor", "topics", "pause orders", "schedule", "relay --from orders --to redisstream"} {
			args := append(strings.Fields(command), "--redis", c.redis)
			if c.more != "" {
				args = append(args, c.more)
			}
			t.Run(strings.Join(args, " "), func(t *testing.T) {
				t.Parallel()
				status, out, said := at(t, nil, args...)
				require.Equal(t, exitRefused, status, "%s%s", out, said)
				require.Contains(t, said, c.want)
				require.NotContains(t, said, "interrupted")
			})
		}
	}
	status, _, said := at(t, nil, "topics", "--redis", secure, "--redis-tls", "--redis-tls-insecure")
	require.Zero(t, status, said)
	// A server that does not answer is not said to speak anything.
	require.False(t, speaksTLS("tcp", mute))
	require.False(t, speaksPlain(t.Context(), "tcp", mute))
}

func TestARedisThatIsSlowIsNamed(t *testing.T) {
	t.Parallel()
	mute, _ := silent(t)
	for _, environment := range [][]string{nil, {"REDISDELAY_REDIS_TIMEOUT=20ms"}} {
		args := []string{"doctor", "--redis", mute}
		if environment == nil {
			args = append(args, "--redis-timeout", "20ms")
		}
		status, _, said := at(t, environment, args...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, said, "Redis did not answer within 20ms: it may be busy, or far; --redis-timeout says how long it may take")
	}
}

// A server that cannot be reached is not one that is slow to answer.
func TestATimeoutOfDialingIsNoSlowRedis(t *testing.T) {
	t.Parallel()
	a, err := parsed(nil, "--redis", "redis.test")
	require.NoError(t, err)
	for op, want := range map[string]bool{"dial": false, "read": true, "write": true} {
		err = a.advised(fmt.Errorf("acts: %w", &net.OpError{Op: op, Net: "tcp", Err: os.ErrDeadlineExceeded}))
		require.Equal(t, want, strings.Contains(err.Error(), "Redis did not answer within 3s"), op)
	}
}

// A completion ends in its own time, however long a call to Redis may take.
func TestACompletionDoesNotWaitForASlowRedis(t *testing.T) {
	t.Parallel()
	mute, asked := silent(t)
	ended := make(chan string, 1)
	go func() {
		var out, errs strings.Builder
		run(t.Context(), []string{"__complete", "topics", "--redis", mute, "--redis-timeout", "1h", ""},
			system{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, completes: time.Second})
		ended <- out.String()
	}()
	select {
	case out := <-ended:
		require.Contains(t, out, ":1") // an error: the shell completes nothing
	case <-time.After(patience):
		require.Fail(t, "the completion waits", "asked: %d", len(asked))
	}
}

func TestPasswordsThatAreMissingOrWrongAreNamed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	require.NoError(t, server.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "resetpass", ">hunter2").Err())
	status, _, said := at(t, nil, "topics", "--redis", server.Addr())
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "Redis wants a password: set REDISDELAY_REDIS_PASSWORD, or --redis-password-file")
	status, _, said = at(t, []string{"REDISDELAY_REDIS_PASSWORD=wrong"}, "topics", "--redis", server.Addr())
	require.Equal(t, exitFailed, status)
	require.Contains(t, said, "Redis refuses the password of REDISDELAY_REDIS_PASSWORD or --redis-password-file")
	require.NotContains(t, said, "wrong")
	status, _, said = at(t, []string{"REDISDELAY_REDIS_PASSWORD=hunter2"}, "topics", "--redis", server.Addr())
	require.Zero(t, status, said)
}

func TestListsSayThatTheServerIsAReplica(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.publish("orders", "m", "", "delay", "1h")
	for _, master := range [][]any{{"NO", "ONE"}, {"127.0.0.1", "1"}} {
		require.NoError(t, w.client.Do(t.Context(), append([]any{"REPLICAOF"}, master...)...).Err())
		for _, command := range []string{"topics", "topics orders --json", "top --once --interval 100ms", "groups ls"} {
			status, _, said := w.run("", strings.Fields(command)...)
			require.Zero(t, status, said)
			require.Equal(t, master[0] != "NO", strings.Contains(said, "Redis is a replica, where nothing can be published, delivered or scheduled: "+
				"connect to its master, 127.0.0.1:1."), "%s: %s", command, said)
		}
	}
}

func TestAddressesHaveADefaultPort(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"redis.test": "redis.test:6379", "redis.test:1": "redis.test:1", "::1": "[::1]:6379", "127.0.0.1": "127.0.0.1:6379", "redis://h": "h:6379"} {
		options, err := reading(t, nil, "--redis", given).redis.options()
		require.NoError(t, err)
		require.Equal(t, []string{want}, options.Addrs)
	}
}

// A file with a secret that others can read is refused, in whatever way the file or the secret is
// written.
func TestSecretsThatOthersCanReadAreRefused(t *testing.T) {
	t.Parallel()
	open := func(text string) string {
		name := filepath.Join(t.TempDir(), "open")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		require.NoError(t, os.Chmod(name, 0o644))
		return name
	}
	password := open("hunter2")
	for _, c := range []struct{ environment, args []string }{
		{nil, []string{"--redis-password-file", password}},
		{nil, []string{"--redis-password-file=" + password}},
		{[]string{"REDISDELAY_REDIS_PASSWORD_FILE=" + password}, nil},
		{nil, []string{"--config", file(t, "redis-password-file = "+password)}},
		{nil, []string{"--config", file(t, "redis_password_file = "+password)}},
		{nil, []string{"--config", open("redis-password = hunter2")}},
		{nil, []string{"--config", open("REDIS_PASSWORD=hunter2")}},
		{nil, []string{"--config", open("redis = redis://:hunter2@localhost")}},
		{nil, []string{"--config", open("redis = rediss://ann:hunter2@localhost:6379/1")}},
	} {
		status, _, said := at(t, c.environment, append([]string{"topics", "--redis", "127.0.0.1:1"}, c.args...)...)
		require.Equal(t, exitRefused, status, "%v: %s", c, said)
		require.Contains(t, said, "has a secret, and others can read it: chmod 600")
		require.NotContains(t, said, "hunter2")
	}
	require.Equal(t, "hunter2", reading(t, nil, "--redis-password-file", file(t, "hunter2")).redis.password.value)
	reading(t, nil, "--config", open("redis = redis://localhost"))
}

// Kubernetes mounts a secret for a program that is not root's as a file of root, which the program
// reads by its group. systemd's credentials look the same. Nobody else's file may be like that.
func TestTheGroupMayReadSecretsOfRoot(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--user", "relay", "on", ">hunter2", "~*", "&*", "+@all")
	for _, c := range []struct {
		owner   int
		mode    os.FileMode
		refused bool
	}{
		{0, 0o400, false}, {0, 0o440, false}, {0, 0o640, false}, {0, 0o444, true}, {0, 0o660, true}, {0, 0o641, true},
		{65532, 0o400, false}, {65532, 0o600, false}, {65532, 0o440, true}, {65532, 0o640, true}, {65532, 0o604, true},
	} {
		for _, notation := range []string{"--redis-password-file", "--config"} {
			name := file(t, map[string]string{"--redis-password-file": "hunter2", "--config": "redis-password = hunter2"}[notation])
			require.NoError(t, os.Chmod(name, c.mode))
			if os.Getuid() == 0 {
				require.NoError(t, os.Chown(name, c.owner, 65532))
			} else if c.owner == 0 {
				continue // only root gives files away
			}
			status, _, said := at(t, nil, "topics", "--redis", server.Addr(), "--redis-username", "relay", notation, name)
			if c.refused {
				require.Equal(t, exitRefused, status, "%v: %s", c, said)
				require.Contains(t, said, "has a secret, and others can read it: chmod 600", "%v", c)
			} else {
				require.Zero(t, status, "%v: %s", c, said)
			}
		}
	}
}

func TestNearNamesAreSuggested(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	w.publish("orders", "x", "y")
	for args, want := range map[string]string{
		"topcs": "topics", "doktor": "doctor", "dead pruge": "purge", "groups sl": "ls", "schedules resum": "resume",
	} {
		status, _, said := w.run("", strings.Fields(args)...)
		require.Equal(t, exitRefused, status, args)
		require.Regexp(t, `(?s)unknown command.*Did you mean this\?.*\b`+want+`\b`, said, args)
	}
	for _, args := range []string{"topics oders", "groups ls ordres", "tail orers", "dead ls Orders", "pause oders", "publish oders", "upcoming orderss"} {
		status, _, said := w.run("", strings.Fields(args)...)
		require.Equal(t, exitFailed, status, args)
		require.Contains(t, said, `there is a topic "orders": did you mean that?`, args)
	}
	_, out, _ := w.run("", "doctor", "oders")
	require.Contains(t, out, `There is a topic "orders": did you mean that?`)
	for _, args := range []string{"topics invoices", "pause orders --group bill"} {
		_, _, said := w.run("", strings.Fields(args)...)
		require.NotContains(t, said, "did you mean", args)
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]int{{"", ""}: 0, {"a", ""}: 1, {"oders", "orders"}: 1, {"ordres", "orders"}: 2, {"küche", "kuche"}: 1, {"abc", "xyz"}: 3, {"a", "abcdefghij"}: 5} {
		require.Equal(t, want, distance(pair[0], pair[1], 5), pair)
	}
}

func TestTheVersionIsAFlagToo(t *testing.T) {
	t.Parallel()
	_, want, _ := says(nil, "version")
	status, out, said := says(nil, "--version")
	require.Zero(t, status, said)
	require.Equal(t, want, out)
}

// A name may begin with a dash. The tool prints how to give it, and what it prints works.
func TestNamesThatBeginWithADash(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("-x", "-g")
	_, err := w.admin.Pause(t.Context(), "-x", admin.PauseOptions{})
	require.NoError(t, err)
	_, err = w.admin.Pause(t.Context(), "-x", admin.PauseOptions{Scope: admin.InGroup("-g")})
	require.NoError(t, err)
	status, _, said := w.run("", "msg", "ls", "-x", "--limit=3")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "a name that begins with a dash comes after --: redisdelay msg ls --limit=3 -- -x")
	status, _, said = w.run("", shellWords(t, "redisdelay msg ls --limit=3 -- -x")...)
	require.Zero(t, status, said)

	status, _, said = w.run("", "msg", "ls", "-x", "--limit", "3", "--json", "--state", "waiting")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "a name that begins with a dash comes after --: redisdelay msg ls --limit 3 --json --state waiting -- -x\n")
	for _, mistake := range []string{"pause -x --reason night", "pause orders --reason=night", "msg ls orders --limt 3"} {
		status, _, said = w.run("", strings.Fields(mistake)...)
		require.Equal(t, exitRefused, status)
		require.Contains(t, said, "unknown ")
		require.NotContains(t, said, "begins with a dash", "the rest would be no command: %s", mistake)
	}

	_, _, said = w.run("", "resume", "--group=-g", "--", "-x")
	require.Contains(t, said, "redisdelay resume -- -x ends that.")
	_, _, said = w.run("", "resume", "--", "-x")
	require.NotContains(t, said, "ends that")
	_, err = w.admin.Pause(t.Context(), "-x", admin.PauseOptions{Scope: admin.InGroup("-g")})
	require.NoError(t, err)
	_, _, said = w.run("", "resume", "--", "-x")
	require.Contains(t, said, "redisdelay resume --group=-g -- -x ends that.")
}

func TestAPauseOverAPauseAsks(t *testing.T) {
	t.Parallel()
	server := redisdelaytest.Start(t) // its clock stands still
	w := newWorld(t, server.Client(), server.Addr())
	w.group("orders", "billing")
	pausing := func(more ...string) (int, string) {
		status, out, said := w.run("", append([]string{"pause", "orders", "--as", "bob"}, more...)...)
		return status, out + said
	}
	for _, group := range []string{"", "--group=billing"} {
		flags := strings.Fields(group)
		status, said := pausing(append(flags, "--why=the partner is down", "--for=2h")...)
		require.Zero(t, status, said)
		status, said = pausing(append(flags, "--why=deploy", "--for=5m")...)
		require.Equal(t, exitRefused, status)
		require.Regexp(t, `this would replace a pause: .* is paused since .* by bob until .*: the partner is down; the new one is for 5m0s: deploy; there is no terminal`, said)
		status, said = pausing(append(flags, "--for=5m", "--dry-run")...)
		require.Zero(t, status)
		require.Contains(t, said, "This would replace a pause")
		_, out, _ := w.run("", "groups", "ls", "orders")
		require.Contains(t, out, "for 2h0m: the partner is down", "it is as it was")
		status, said = pausing(append(flags, "--why=deploy", "--for=5m", "--yes")...)
		require.Zero(t, status, said)
		_, out, _ = w.run("", "groups", "ls", "orders")
		require.Contains(t, out, "for 5m0s: deploy")
		_, out, _ = w.run("", "audit")
		require.Contains(t, out, "for 2h0m0s: the partner is down")
		require.Contains(t, out, "for 5m0s: deploy")
	}
	w.run("", "resume", "orders")
	require.Zero(t, first(pausing("--dry-run")))
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.Nil(t, stats.Pause)
}

func first(status int, _ string) int { return status }

func TestAnEmptySearchSaysWhereItLooked(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	where := fmt.Sprintf(`It looked at key prefix "elsewhere" of %s.`, w.addr)
	for _, args := range []string{"topics", "groups ls", "groups idle", "workers", "schedules ls", "audit", "doctor", "top --once --interval 100ms"} {
		status, _, said := w.run("", append(strings.Fields(args), "--key-prefix", "elsewhere")...)
		require.Zero(t, status, args)
		require.Contains(t, said, where, args)
	}
	w.bury("orders", "billing", 3)
	for args, want := range map[string]string{
		"msg ls orders":                              `Topic "orders" has no messages in state waiting. It looked at key prefix "redisdelay" of `,
		"msg ls orders --state retrying":             `Topic "orders" has no messages in state retrying in group "billing".`,
		"dead ls orders --reason nothing --since 2h": `None of 3 messages of topic "orders" in state dead in group "billing" is chosen by: reason contains "nothing", since 2h.`,
		"dead ls orders --metadata kind=gift":        "they were read with --marshaler binary",
		"msg get orders none":                        "not found among 3 messages in all states and groups",
		"audit --topic orders --by nobody":           "Nothing is in the audit log.",
	} {
		_, _, said := w.run("", strings.Fields(args)...)
		require.Contains(t, said, want, args)
	}
	w.run("", "pause", "orders", "--as", "ann")
	_, _, said := w.run("", "audit", "--by", "nobody")
	require.Contains(t, said, "Nothing of that is among the 1 act in the audit log.")
}

// If payloads cannot be read, the tool names the setting.
func TestAnotherMarshalerIsNamed(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: w.client, Marshaler: redisdelay.JSONMarshaler{}}, nil)
	require.NoError(t, err)
	msg := message.NewMessage("1", []byte("x"))
	redisdelay.DelayFor(msg, time.Hour)
	redisdelay.SetDelayID(msg, "name", redisdelay.DelayIDReplace)
	require.NoError(t, publisher.Publish("orders", msg, message.NewMessage("2", []byte("y"))))
	require.NoError(t, publisher.Close())
	const want = "could not be read with --marshaler binary. If the publishers use another Marshaler, try --marshaler json."
	for _, args := range []string{"msg ls orders", "msg get orders name", "msg get orders name --json", "msg get orders 1", "msg ls orders --state ready"} {
		_, _, said := w.run("", strings.Fields(args)...)
		require.Contains(t, said, want, args)
		_, _, said = w.run("", append(strings.Fields(args), "--marshaler=json")...)
		require.NotContains(t, said, "marshaler", args)
	}
	_, out, said := w.tail(func() { w.publishJSON("orders") }, "orders", "--limit=1")
	require.Contains(t, out+said, want)
}

func (w *world) publishJSON(topic string) {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: w.client, Marshaler: redisdelay.JSONMarshaler{}}, nil)
	require.NoError(w.t, err)
	require.NoError(w.t, publisher.Publish(topic, message.NewMessage("3", nil)))
	require.NoError(w.t, publisher.Close())
}

// A flag that is given and empty is refused, because a variable of a script was not set. An absent
// one has its default.
func TestEmptyFlagsAreRefused(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	w.group("mails", "billing")
	w.publish("orders", "x", "y", redisdelay.DelayIDKey, "name", redisdelay.DelayKey, "1h")
	for _, args := range [][]string{
		{"pause", "orders", "--group="}, {"pause", "orders", "--why="}, {"resume", "orders", "--group", ""}, {"dead", "purge", "orders", "--reason=", "--yes"},
		{"dead", "purge", "orders", "--from=", "--yes"}, {"dead", "requeue", "orders", "--since=", "--yes"}, {"dead", "move", "orders", "--to=", "--yes"},
		{"msg", "kill", "orders", "name", "--group=", "--yes"}, {"msg", "get", "orders", "name", "--by="}, {"publish", "orders", "--uuid="},
		{"publish", "orders", "--delay-id="}, {"publish", "orders", "--in="}, {"msg", "reschedule", "orders", "name", "--at="}, {"audit", "--by="},
		{"audit", "--topic="}, {"topics", "--key-prefix="}, {"pause", "orders", "--as="}, {"upcoming", "orders", "--from="}, {"msg", "ls", "orders", "--state="},
		{"groups", "limit", "orders", "billing", "--rate="}, {"groups", "limit", "orders", "billing", "--rate", "5/s", "--burst="},
		{"groups", "limit", "orders", "billing", "--at-once", ""}, {"groups", "limit", "orders", "billing", "--lift", "--why="},
		{"find", "x", "--topic="}, {"find", "x", "--topic", "orders", "--topic", ""}, {"doctor", "--topic="},
		{"groups", "history", "orders", "billing", "--keep="}, {"history", "orders", "--id="}, {"history", "orders", "--group", ""},
	} {
		status, _, said := w.run("", args...)
		require.Equal(t, exitRefused, status, "%s: %s", args, said)
		require.Regexp(t, `--[a-z-]+ is empty; (give it a value, or leave it out|it is required)`, said, args)
		require.NotContains(t, said, "Nothing was found")
	}
	status, _, said := w.run("", "ignore", "persistence", "--why=")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "--why is empty; it is required")
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.Nil(t, stats.Pause)
	require.Equal(t, 1, stats.Waiting)
}

// purge --from deletes what the export wrote, and nothing that died since.
func TestPurgeFromAnExport(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.bury("orders", "billing", 30)
	_, exported, _ := w.run("", "dead", "export", "orders")
	w.bury2("orders", "billing", 11)
	name := file(t, exported)
	status, out, said := w.run("", "dead", "purge", "orders", "--from", name, "--dry-run")
	require.Zero(t, status, said)
	require.Contains(t, out, "This would purge 30 dead letters")
	status, out, said = w.run(exported, "dead", "purge", "orders", "--from", "-", "--yes")
	require.Zero(t, status, said)
	require.Contains(t, out, "Done: purge 30 dead letters")
	stats, err := w.admin.Stats(t.Context(), "orders")
	require.NoError(t, err)
	require.Equal(t, 11, stats.Groups[0].Dead)
	w.group("mails", "billing")
	for _, args := range [][]string{{"mails"}, {"orders", "--group=other"}} {
		status, _, said = w.run("", append([]string{"dead", "purge", "--yes", "--from", name}, args...)...)
		require.Equal(t, exitRefused, status, args)
		require.Contains(t, said, `--from has dead letter`)
	}
}

// bury2 makes more dead letters.
func (w *world) bury2(topic, group string, n int) {
	w.t.Helper()
	stop := w.subscribe(topic, redisdelay.SubscriberConfig{ConsumerGroup: group})
	for i := range n {
		w.publish(topic, fmt.Sprint("later-", i), "die: later")
	}
	w.await(topic, group, func(g admin.GroupStats) bool { return g.Ready+g.InHand == 0 })
	stop()
}

// An import delivers to every group, so it says so and needs consent.
func TestAnImportForOtherGroupsNeedsConsent(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.bury("orders", "billing", 2)
	_, exported, _ := w.run("", "dead", "export", "orders")
	w.group("orders", "audit")
	status, _, said := w.run(exported, "dead", "import", "orders", "--yes")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, `the dead letters are of group "billing", and an import delivers them to every group of topic "orders", also to "audit"; --every-group does that`)
	status, _, said = w.run(exported, "dead", "import", "orders", "--yes", "--every-group")
	require.Zero(t, status, said)
	w.run("", "groups", "rm", "orders", "audit", "--yes")
	status, _, said = w.run(exported, "dead", "import", "orders", "--yes")
	require.Zero(t, status, said)
	require.NotContains(t, said, "every group")
}

// A message that waits is in no group, so kill refuses --group. One that is in groups it kills only
// in that group.
func TestKillInOneGroup(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.group("orders", "billing")
	w.group("orders", "audit")
	w.publish("orders", "waits", "x", redisdelay.DelayKey, "1h", redisdelay.DelayIDKey, "name")
	w.publish("orders", "ready", "y")
	status, _, said := w.run("", "msg", "kill", "orders", "name", "--group=billing", "--yes")
	require.Equal(t, exitRefused, status)
	require.Regexp(t, `message \S+ waits, and is in no group yet: to kill it makes a dead letter of every group, "audit", "billing"; leave out --group`, said)
	dead := func() map[string]int {
		stats, err := w.admin.Stats(t.Context(), "orders")
		require.NoError(t, err)
		found := map[string]int{}
		for _, g := range stats.Groups {
			found[g.Group] = g.Dead
		}
		return found
	}
	require.Equal(t, map[string]int{"billing": 0, "audit": 0}, dead())
	status, _, said = w.run("", "msg", "kill", "orders", "ready", "--group=billing", "--yes")
	require.Zero(t, status, said)
	require.Equal(t, map[string]int{"billing": 1, "audit": 0}, dead())
	status, out, said := w.run("", "msg", "kill", "orders", "name", "--yes")
	require.Zero(t, status, said)
	require.Contains(t, out, `of group "audit, billing"`)
	require.Equal(t, map[string]int{"billing": 2, "audit": 1}, dead())
}

// The command dead import reads byte for byte what dead export writes.
func TestDeadLettersComeBackByteForByte(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	const odd = "\xff\x00\xfe <&> \u2028 \x1b[2J\ufffd"
	stop := w.subscribe("t"+odd, redisdelay.SubscriberConfig{ConsumerGroup: "g" + odd})
	w.publish("t"+odd, "u"+odd, "die: r"+odd, "k"+odd, "v"+odd, "plain", odd, "valid", "v")
	w.await("t"+odd, "g"+odd, func(g admin.GroupStats) bool { return g.Dead == 1 })
	stop()
	status, exported, said := w.run("", "dead", "export", "t"+odd)
	require.Zero(t, status, said)
	require.Contains(t, exported, `"uuid_base64":`)
	require.Contains(t, exported, `"metadata_base64":{`)
	status, _, said = w.run(exported, "dead", "purge", "t"+odd, "--from=-", "--yes")
	require.Zero(t, status, said)
	status, _, said = w.run(exported, "dead", "import", "t"+odd, "--yes")
	require.Zero(t, status, said)
	page, err := w.admin.List(t.Context(), "t"+odd, admin.Query{State: admin.Ready, Group: "g" + odd})
	require.NoError(t, err)
	require.Len(t, page.Messages, 1)
	got := page.Messages[0]
	require.Equal(t, "u"+odd, got.UUID)
	require.Equal(t, message.Metadata{"k" + odd: "v" + odd, "plain": odd, "valid": "v"}, got.Metadata)
	require.Equal(t, "die: r"+odd, string(got.Payload))
	for _, args := range [][]string{{"msg", "ls", "t" + odd, "--state=ready", "--json"}, {"topics", "--json"}, {"groups", "ls", "--json"}} {
		_, out, _ := w.run("", args...)
		require.Contains(t, out, `_base64":`, args)
	}
}

// emptyWorld is a world on a server without data.
func emptyWorld(t *testing.T) *world {
	t.Helper()
	server := redistest.Start(t, "--appendonly", "yes")
	return newWorld(t, server.Client(t), server.Addr())
}

// The end of the time of --for is no error.
func TestTailEndsWhenItIsTold(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	w.publish("orders", "m", "", "delay", "1h")
	status, _, said := w.tail(func() {}, "orders", "--for", "50ms")
	require.Zero(t, status, said)
	require.NotContains(t, said, "deadline")
}
