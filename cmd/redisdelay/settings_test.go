package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// parsed returns the program after it has read the settings of the command relay.
func parsed(environment []string, args ...string) (*app, error) {
	a := newApp(system{environment: environment})
	if err := a.relay.ParseFlags(args); err != nil {
		return a, err
	}
	return a, a.settings.resolve(a.relay.Flags())
}

// reading returns the settings of the command relay, read from the arguments.
func reading(t *testing.T, environment []string, args ...string) *relaySettings {
	t.Helper()
	a, err := parsed(environment, args...)
	require.NoError(t, err)
	return a.relaying
}

func TestFlagOverridesVariableWhichOverridesDefault(t *testing.T) {
	t.Parallel()
	require.Equal(t, "relay", *reading(t, nil).group)
	require.Equal(t, "a", *reading(t, []string{"REDISDELAY_GROUP=a"}).group)
	require.Equal(t, "b", *reading(t, []string{"REDISDELAY_GROUP=a"}, "--group", "b").group)
	require.Equal(t, "relay", *reading(t, []string{"REDISDELAY_GROUP="}).group, "an empty variable is none")

	require.Equal(t, list{"a", "b"}, *reading(t, []string{"REDISDELAY_FROM=a, b"}).from)
	require.Equal(t, list{"c", "d", "e"}, *reading(t, []string{"REDISDELAY_FROM=a,b"}, "--from", "c,d", "--from=e").from)
	require.True(t, *reading(t, []string{"REDISDELAY_ORDERED=true"}).ordered)
	require.False(t, *reading(t, []string{"REDISDELAY_ORDERED=true"}, "--ordered=false").ordered)
	require.Equal(t, "json", reading(t, []string{"REDISDELAY_MARSHALER=json"}).marshaler.value)
	require.Equal(t, time.Minute, *reading(t, []string{"REDISDELAY_LEASE=1m"}).lease)
	require.Equal(t, 5*time.Second, reading(t, nil, "--backoff", "5s").backoff.wait(9))
	grows := reading(t, nil, "--backoff", "1s..4s").backoff.wait
	require.InDelta(t, time.Second, grows(1), float64(200*time.Millisecond))
	require.InDelta(t, 4*time.Second, grows(9), float64(800*time.Millisecond))
	require.Nil(t, reading(t, nil).backoff.wait, "the relay's own")
}

func TestSecretsComeFromTheEnvironmentOrAFile(t *testing.T) {
	t.Parallel()
	inFile := file(t, "from the file\n")
	byVariable := []string{"REDISDELAY_REDIS_PASSWORD=from the variable"}
	require.Equal(t, "from the variable", reading(t, byVariable).redis.password.value)
	require.Equal(t, "from the file", reading(t, nil, "--redis-password-file", inFile).redis.password.value)
	require.Equal(t, "from the file", reading(t, []string{"REDISDELAY_REDIS_PASSWORD_FILE=" + inFile}).redis.password.value)
	require.Equal(t, "from the file", reading(t, byVariable, "--redis-password-file", inFile).redis.password.value)
}

// A secret on the command line is refused, and the error does not contain it.
func TestSecretsOnTheCommandLineAreRefused(t *testing.T) {
	t.Parallel()
	for _, refused := range []struct{ args, wants []string }{
		{[]string{"--redis-password", "hunter2"}, []string{"REDISDELAY_REDIS_PASSWORD", "--redis-password-file"}},
		{[]string{"-redis-password=hunter2"}, []string{"REDISDELAY_REDIS_PASSWORD", "--redis-password-file"}},
		{[]string{"--redis-sentinel-password=hunter2"}, []string{"REDISDELAY_REDIS_SENTINEL_PASSWORD"}},
		{[]string{"--to", "nats", "--nats-token", "hunter2"}, []string{"REDISDELAY_NATS_TOKEN", "--nats-token-file"}},
		{[]string{"--redis", "redis://:hunter2@localhost"}, []string{"REDISDELAY_REDIS"}},
		{[]string{"--redis", "localhost:6379,redis://:hunter2@localhost"}, []string{"--redis has a URL and other addresses"}},
		{[]string{"--redis", "redis://:hunt%er2@localhost"}, []string{"REDISDELAY_REDIS"}},
		{[]string{"--redis", "hunter2@localhost:6379"}, []string{"REDISDELAY_REDIS"}},
		{[]string{"--to", "redisstream", "--redisstream", "redis://a:hunter2@localhost"}, []string{"REDISDELAY_REDISSTREAM"}},
		{[]string{"--to", "nats", "--nats", "nats://localhost,nats://hunter2@localhost"}, []string{"REDISDELAY_NATS"}},
		{[]string{"--to", "amqp", "--amqp", "amqp://a:hunter2@localhost/"}, []string{"REDISDELAY_AMQP"}},
		{[]string{"--to", "http", "--http", "https://a:hunter2@localhost/"}, []string{"REDISDELAY_HTTP"}},
		{[]string{"--to", "http", "--http", "https://localhost/", "--http-secret", "whsec_hunter2"}, []string{"REDISDELAY_HTTP_SECRET", "--http-secret-file"}},
	} {
		status, _, said := says(nil, append([]string{"relay", "--from", "a"}, refused.args...)...)
		require.Equal(t, exitRefused, status, refused.args)
		require.NotContains(t, said, "hunt", refused.args)
		for _, want := range refused.wants {
			require.Contains(t, said, want, refused.args)
		}
	}
	// An error about a secret in a variable does not contain it either.
	for _, environment := range []string{"REDISDELAY_REDIS=redis://:hunt%er2@localhost", "REDISDELAY_REDIS=redis://:hunter2@", "REDISDELAY_REDIS=redis://:hunter2@localhost,,"} {
		status, _, said := says([]string{environment}, "relay", "--from", "a", "--to", "redisstream")
		require.Equal(t, exitRefused, status, environment)
		require.Contains(t, said, "--redis")
		require.NotContains(t, said, "hunt", environment)
	}
}

func TestInvalidSettingsAreRefused(t *testing.T) {
	t.Parallel()
	const redis = "--redis=localhost:6379"
	fine := []string{"--from=a", redis}
	toStream := slices.Clip(append(slices.Clip(fine), "--to=redisstream"))
	toHooks := slices.Clip(append(slices.Clip(fine), "--to=http", "--http=https://example.com/hooks"))
	for _, refused := range []struct {
		args, environment []string
		want              string
	}{
		{nil, nil, "--from is missing: the topics to relay; or --all"},
		{nil, nil, "--redis is missing: a host:port"},
		{nil, nil, "--to is missing: redisstream, nats, amqp"},
		{[]string{"--from=a", "--to=redisstream"}, nil, "--redis is missing: a host:port"},
		{[]string{"--to", "sqs"}, nil, "it must be one of redisstream, nats, amqp, kafka, http"},
		{[]string{"--colour", "red"}, nil, "unknown flag: --colour"},
		{append(toStream, "orders"), nil, `unknown command "orders" for "redisdelay relay"`},
		{nil, []string{"REDISDELAY_LEASE=soon"}, `REDISDELAY_LEASE: invalid argument "soon"`},
		{nil, []string{"REDISDELAY_TO=sqs"}, "it must be one of redisstream"},
		{[]string{"--backoff", "1m..1s"}, nil, "such as 250ms..1m"},
		{[]string{"--backoff", "0s"}, nil, "such as 250ms..1m"},
		{[]string{"--log-level", "loud"}, nil, "it must be one of debug, info"},
		{append(toStream, "--all"), nil, "--from and --all exclude one another"},
		{append(toStream, "--map", "b=c"), nil, `--map has topic "b", which --from does not have`},
		{append(toStream, "--map", "a"), nil, `--map has "a", which is not topic=destination topic`},
		{append(toStream, "--map", "a=b,a=c"), nil, `--map has topic "a" twice`},
		{append(toStream, "--from", "a"), nil, `Topics[1] is "a" again`},
		{append(toStream, "--from", ""), nil, "Topics[1] is empty"},
		{append(toStream, "--ordered", "--concurrency", "2"), nil, "Concurrency must be 1 or 0 with Ordered"},
		{append(toStream, "--batch", "-1"), nil, "BatchMessages"},
		{append(toStream, "--lease", "1ms"), nil, "LeaseDuration"},
		{append(toStream, "--stop-timeout", "0s"), nil, "--stop-timeout is 0s"},
		{append(toStream, "--batch", "9223372036854775807"), nil, "BatchMessages is 9223372036854775807"},
		{append(toStream, "--health", "8080"), nil, `--health is "8080", which is not a host:port`},
		{append(toStream, "--health", ":http2x"), nil, `--health is ":http2x", which is not a host:port`},
		{append(toStream, "--ready-max-lag", "-1s"), nil, "--ready-max-lag is -1s"},
		{append(toStream, "--key-prefix", "a{b"), nil, "KeyPrefix"},
		{append(toStream, "--amqp", "amqp://localhost"), nil, "--amqp is for --to amqp"},
		{append(toStream, "--nats-provision"), nil, "--nats-provision is for --to nats"},
		{append(toStream, "--redisstream-maxlen", "-1"), nil, "--redisstream-maxlen is -1"},
		{append(toStream, "--redisstream-db", "3"), nil, "--redisstream-db has no effect without --redisstream"},
		{append(toStream, "--redisstream-cluster"), nil, "--redisstream-cluster has no effect without --redisstream"},
		{append(toStream, "--redisstream-tls"), nil, "--redisstream-tls has no effect without --redisstream"},
		{append(toStream, "--redisstream-sentinel-master=m"), nil, "--redisstream-sentinel-master has no effect without --redisstream"},
		{toStream, []string{"REDISDELAY_REDISSTREAM_USERNAME=u"}, "--redisstream-username has no effect without --redisstream"},
		{toStream, []string{"REDISDELAY_REDISSTREAM_PASSWORD=p"}, "--redisstream-password has no effect without --redisstream"},
		{append(toStream, "--redisstream-password-file", file(t, "p")), nil, "--redisstream-password has no effect without --redisstream"},
		{append(slices.Clip(fine), "--to=nats"), nil, "--nats is missing"},
		{append(slices.Clip(fine), "--to=nats", "--nats", "localhost:4222"), nil, "--nats must be a URL that begins with nats:// or tls://"},
		{append(slices.Clip(fine), "--to=nats", "--nats", "http://localhost"), nil, "--nats must be a URL that begins with nats://"},
		{append(slices.Clip(fine), "--to=nats", "--nats=nats://a", "--nats-username=u"), []string{"REDISDELAY_NATS_TOKEN=t"}, "several methods of authentication are set for NATS: user and password, a token"},
		{append(slices.Clip(fine), "--to=nats", "--nats=nats://a", "--nats-nkey-file", file(t, "no seed")), nil, "does not have the seed of an NKey"},
		{append(slices.Clip(fine), "--to=nats", "--nats=nats://a", "--nats-creds-file", "/nowhere"), nil, "/nowhere: no such file"},
		{append(slices.Clip(fine), "--to=amqp"), nil, "--amqp is missing"},
		{append(slices.Clip(fine), "--to=amqp", "--amqp", "amqp://localhost/?heartbeat=1"), nil, "parameters after a question mark"},
		{append(slices.Clip(fine), "--to=kafka"), nil, "--kafka is missing"},
		{append(slices.Clip(fine), "--to=kafka", "--kafka", "localhost"), nil, "--kafka must have a host:port"},
		{append(slices.Clip(fine), "--to=kafka", "--kafka", "localhost:9092", "--kafka-username", "u"), nil, "REDISDELAY_KAFKA_PASSWORD must be set together"},
		{append(slices.Clip(fine), "--to=kafka", "--kafka", "localhost:9092", "--kafka-tls-insecure"), nil, "--kafka-tls-insecure has no effect"},
		{append(slices.Clip(fine), "--to=http"), nil, "--http is missing: https://host/path"},
		{append(slices.Clip(fine), "--to=http", "--http", "ftp://example.com"), nil, "--http must be a URL that begins with http:// or https://"},
		{append(slices.Clip(fine), "--to=http", "--http", "https://{topic}.example.com/"), nil, "--http has {topic} in its host"},
		{append(toHooks, "--http-method", "GET"), nil, "it must be one of POST, PUT, PATCH"},
		{append(toHooks, "--http-timeout", "0s"), nil, "--http-timeout is 0s"},
		{append(toHooks, "--http-allow-private", "10.0.0.0/33"), nil, `--http-allow-private has "10.0.0.0/33"`},
		{append(toHooks, "--http-allow-private", "localhost"), nil, "such as 10.1.2.3, or a range"},
		{append(toHooks, "--batch", "10"), nil, "--batch is 10, but --to http sends each message alone"},
		{append(toHooks, "--http-secret-file", file(t, "hunter2")), nil, "--http-secret-file, REDISDELAY_HTTP_SECRET: a key does not begin with whsec_"},
		{toHooks, []string{"REDISDELAY_HTTP_SECRET=whsec_hunter2!"}, "a key is not base64 after whsec_"},
		{toHooks, []string{"REDISDELAY_HTTP_SECRET=" + webhookKey + " whsec_aHVudGVyMg=="}, "a key must have 24 to 64 bytes"},
		{append(slices.Clip(fine), "--to=amqp", "--amqp", "amqp://localhost/", "--amqp-exchange", "x"), nil, `--amqp-exchange is "x"`},
		{append(slices.Clip(fine), "--to=amqp", "--amqp", "amqp://localhost/a", "--amqp-vhost", "/"), nil, `the virtual host is "a" in --amqp but "/" in --amqp-vhost`},
		{append(slices.Clip(fine), "--to=amqp", "--amqp", "amqp://localhost/%2f", "--amqp-vhost", "a"), nil, `the virtual host is "/" in --amqp but "a" in --amqp-vhost`},
		{[]string{"--redis=:6379"}, nil, `--redis is ":6379", which is not a host:port`},
		{[]string{"--redis=http://localhost"}, nil, "--redis must be a URL that begins with redis:// or rediss://"},
		{[]string{"--redis=redis://localhost/x"}, nil, "not the number of a database"},
		{[]string{"--redis=redis://localhost/2", "--redis-db=3"}, nil, "--redis has database 2, but --redis-db is 3"},
		{[]string{"--redis=redis://localhost?pool_size=2"}, nil, "parameters after a question mark"},
		{[]string{"--redis=redis://a", redis}, nil, "--redis has a URL and other addresses"},
		{[]string{"--redis=a:1,b:2", "--redis-db=3"}, nil, "--redis-db is 3, but a Cluster has only 0"},
		{[]string{redis, "--redis-cluster", "--redis-sentinel-master=m"}, nil, "exclude one another"},
		{[]string{redis, "--redis-sentinel-username=u"}, nil, "without --redis-sentinel-master"},
		{[]string{redis, "--redis-username=u"}, nil, "--redis-username needs a password: set --redis-password-file"},
		{nil, []string{"REDISDELAY_REDIS=redis://u@a"}, "--redis-username needs a password: set --redis-password-file"},
		{[]string{redis, "--redis-sentinel-master=m", "--redis-sentinel-username=u"}, nil, "--redis-sentinel-username needs a password: set --redis-sentinel-password-file"},
		{[]string{redis, "--redis-timeout=0s"}, nil, "--redis-timeout is 0s; it must be positive"},
		{[]string{redis}, []string{"REDISDELAY_REDIS_TIMEOUT=3"}, `"3"`},
		{[]string{redis, "--redis-tls-insecure"}, nil, "--redis-tls-insecure has no effect without --redis-tls"},
		{[]string{redis, "--redis-tls", "--redis-tls-ca=/nowhere"}, nil, "--redis-tls-ca: open /nowhere"},
		{[]string{redis, "--redis-tls", "--redis-tls-ca", file(t, "not PEM")}, nil, "has no PEM certificate"},
		{[]string{redis, "--redis-tls", "--redis-tls-cert=/nowhere"}, nil, "--redis-tls-cert and --redis-tls-key must be set together"},
		{[]string{redis, "--redis-tls", "--redis-tls-cert=/no", "--redis-tls-key=/no"}, nil, "--redis-tls-cert, --redis-tls-key: open /no"},
		{[]string{redis, "--redis-password-file=/nowhere"}, nil, "--redis-password-file: open /nowhere"},
		{[]string{redis, "--redis-password-file", file(t, "\n")}, nil, "is empty"},
	} {
		status, _, said := says(refused.environment, append([]string{"relay"}, refused.args...)...)
		require.Equal(t, exitRefused, status, "%v %v", refused.args, said)
		require.Equal(t, 1, strings.Count(said, refused.want), said)
		require.Regexp(t, "^redisdelay relay: ", said)
	}
}

func TestUncheckedCertificatesAreLogged(t *testing.T) {
	t.Parallel()
	for _, insecure := range []string{"true", "false"} {
		p := start(t, []string{"REDISDELAY_REDIS_TLS_INSECURE=" + insecure}, "relay", "--redis=127.0.0.1:1", "--redis-tls", "--from=a", "--to=redisstream")
		p.await("msg=Relaying")
		require.Equal(t, insecure == "true", strings.Contains(p.said(), "Certificates are not checked"))
	}
}

func TestRedisOptionsFollowTheSettings(t *testing.T) {
	t.Parallel()
	single, err := reading(t, []string{"REDISDELAY_REDIS=rediss://user:pass@redis.test/3"}).redis.options()
	require.NoError(t, err)
	require.Equal(t, []string{"redis.test:6379"}, single.Addrs)
	require.Equal(t, []any{"user", "pass", 3}, []any{single.Username, single.Password, single.DB})
	require.NotNil(t, single.TLSConfig)
	require.False(t, single.TLSConfig.InsecureSkipVerify)
	require.Equal(t, []time.Duration{3 * time.Second, 3 * time.Second}, []time.Duration{single.ReadTimeout, single.WriteTimeout})

	sentinel, err := reading(t, []string{"REDISDELAY_REDIS_SENTINEL_PASSWORD=s", "REDISDELAY_REDIS_PASSWORD=r"},
		"--redis=a:1,b:2", "--redis-sentinel-master=m", "--redis-sentinel-username=watcher", "--redis-username=relay", "--redis-db=1", "--redis-timeout=5s").redis.options()
	require.NoError(t, err)
	require.Equal(t, []string{"a:1", "b:2"}, sentinel.Addrs)
	require.Equal(t, []any{"m", "watcher", "s", "relay", "r", 1},
		[]any{sentinel.MasterName, sentinel.SentinelUsername, sentinel.SentinelPassword, sentinel.Username, sentinel.Password, sentinel.DB})
	require.Nil(t, sentinel.TLSConfig)
	require.Equal(t, 5*time.Second, sentinel.ReadTimeout)

	cluster, err := reading(t, nil, "--redis=a:1", "--redis-cluster", "--redis-tls", "--redis-tls-server-name=x", "--redis-tls-insecure").redis.options()
	require.NoError(t, err)
	require.True(t, cluster.IsClusterMode)
	require.Equal(t, "x", cluster.TLSConfig.ServerName)
	require.True(t, cluster.TLSConfig.InsecureSkipVerify)
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	t.Parallel()
	a, err := parsed([]string{"REDISDELAY_FORM=orders", "REDISDELAY_REDIS_PASSWORD=x", "REDISDELAY_FROM=orders", "PATH=/bin"})
	require.NoError(t, err)
	require.Equal(t, []string{"REDISDELAY_FORM"}, a.settings.unknown())
}

// A line of the configuration file counts less than the variable, and that less than the flag.
func TestSettingsComeFromAFileToo(t *testing.T) {
	t.Parallel()
	config := file(t, "# comment\n\nredis = redis.test:1\n key-prefix=a b = c \nredis-password = hunter2\ngroup = from the file\n")
	r := reading(t, nil, "--config", config)
	require.Equal(t, []any{list{"redis.test:1"}, "a b = c", "hunter2", "from the file"},
		[]any{*r.redis.addresses, *r.keyPrefix, r.redis.password.value, *r.group})
	r = reading(t, []string{"REDISDELAY_GROUP=from the variable", "REDISDELAY_CONFIG=" + config}, "--key-prefix", "by flag")
	require.Equal(t, []any{"by flag", "from the variable"}, []any{*r.keyPrefix, *r.group})

	home := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(home, ".config"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, ".config", "redisdelay.conf"), []byte("group = from home"), 0o600))
	require.Equal(t, "from home", *reading(t, []string{"HOME=" + home}).group)
	require.Equal(t, "relay", *reading(t, []string{"HOME=" + home, "XDG_CONFIG_HOME=" + t.TempDir()}).group)

	open := file(t, "redis-password = hunter2")
	require.NoError(t, os.Chmod(open, 0o644))
	for config, want := range map[string]string{
		"/nowhere":                 "--config: open /nowhere",
		file(t, "form = orders"):   "line 1: it must be the name of a setting",
		file(t, "\nfrom orders"):   "line 2: it must be the name of a setting",
		file(t, "config = /etc/x"): "line 1: it must be the name of a setting",
		file(t, "lease = soon"):    `REDISDELAY_LEASE: invalid argument "soon"`,
		open:                       "has a secret, and others can read it",
	} {
		status, _, said := says(nil, "relay", "--config", config)
		require.Equal(t, exitRefused, status, config)
		require.Contains(t, said, want)
		require.NotContains(t, said, "hunter2")
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"help"}, {"--help"}, {"-h"}} {
		status, out, _ := says(nil, args...)
		require.Zero(t, status)
		for _, c := range newApp(system{}).root.Commands() {
			require.Contains(t, out, "\n  redisdelay "+c.Name())
		}
	}
	for _, args := range [][]string{{"help", "relay"}, {"relay", "--help"}, {"relay", "-h"}} {
		status, out, _ := says(nil, args...)
		require.Zero(t, status)
		require.Contains(t, out, "--redis-password-file, REDISDELAY_REDIS_PASSWORD_FILE\n")
		require.Contains(t, out, "or the value itself in REDISDELAY_REDIS_PASSWORD\n")
	}
	// Each command has an example, and the help of those that take something away names --yes.
	each(newApp(system{}).root, func(c *cobra.Command) {
		status, out, said := says(nil, append(strings.Fields(c.CommandPath())[1:], "--help")...)
		require.Zero(t, status, said)
		require.Contains(t, out, "\nExample:\n", c.CommandPath())
		require.Contains(t, c.Example, c.CommandPath())
		require.Equal(t, c.Flags().Lookup("yes") != nil, c.Flags().Lookup("dry-run") != nil, c.CommandPath())
		require.True(t, c.Flags().Lookup("json") != nil || slices.Contains([]string{"relay", "schedule", "export", "ui", "metrics"}, c.Name()), c.CommandPath())
	})
	status, out, _ := says(nil, "version")
	require.Zero(t, status)
	require.Regexp(t, `^redisdelay \S+, go1\.\S+, \w+/\w+\n$`, out)

	for _, args := range [][]string{nil, {"dead"}, {"replay"}, {"dead", "replay"}, {"topics", "--replay"}, {"dead", "ls"}} {
		status, out, said := says(nil, args...)
		require.Equal(t, exitRefused, status, args)
		require.Empty(t, out)
		require.NotEmpty(t, said)
	}
}

// each calls do with each command that has no commands below it.
func each(c *cobra.Command, do func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		each(sub, do)
	}
	if !c.HasSubCommands() && c.Runnable() {
		do(c)
	}
}

func FuzzBackoffs(f *testing.F) {
	for _, text := range []string{"", "5s", "250ms..1m", "1m..1s", "..", "1s..", "..1s", "-1s", "0s", "1s..2s..3s", "1000000h", "1ns..1ns", redisdelay.MaxDelay.String() + ".." + redisdelay.MaxDelay.String()} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var b backoff
		if err := b.Set(text); err != nil {
			if b.wait != nil || b.text != "" {
				t.Errorf("%q is refused, and set", text)
			}
			return
		}
		var before time.Duration
		for _, delivery := range []int{1, 2, 3, 60, 1000} {
			d := b.wait(delivery)
			if d < 0 || d > redisdelay.MaxDelay {
				t.Errorf("%q waits %v after delivery %d", text, d, delivery)
			}
			if !strings.Contains(text, "..") && delivery > 1 && d != before {
				t.Errorf("%q waits %v after delivery %d, and %v before", text, d, delivery, before)
			}
			before = d
		}
	})
}

func FuzzMaps(f *testing.F) {
	for _, text := range []string{"", "a=b", "a=b,c=d", "a=b=c", "=", "a=", "=b", "a", "a=b,a=c", ",", "ü=\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parsed([]string{variable("map") + "=" + text, variable("all") + "=true"})
		if err != nil {
			return
		}
		r := a.relaying
		topics, rename, err := r.topics()
		if err != nil {
			if !errors.Is(err, errRefused) {
				t.Errorf("%q: %v is not a refusal", text, err)
			}
			return
		}
		if topics != nil {
			t.Errorf("%q: %q and not all", text, topics)
		}
		for _, pair := range *r.mapping {
			topic, name, _ := strings.Cut(pair, "=")
			if got := rename(topic, nil); got != name {
				t.Errorf("%q: %q is called %q", text, topic, got)
			}
		}
	})
}
