package promredisdelay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	promredisdelay "github.com/redisdelay/watermill-redisdelay/prometheus"
)

// A Prometheus that scrapes a server with traffic answers every query of the board, and evaluates
// every rule.
func TestEveryQueryOfTheBoardAndTheAlertsHasData(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t, "--maxmemory", "1gb")
	client := redis.NewClient(&redis.Options{Addr: in.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	a, err := admin.New(admin.Config{Client: client})
	require.NoError(t, err)
	traffic(t, client, a)
	p := startPrometheus(t, export(t, promredisdelay.Config{Admin: a, Client: client}))

	board, expressions, variables := readBoard(t)
	for d := range promredisdelay.Described {
		name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]
		require.Contains(t, board, name, "the board shows every metric")
	}
	for _, expr := range expressions {
		if strings.HasPrefix(expr, "ALERTS{") {
			p.query(expr) // there is data only while one fires
			continue
		}
		p.awaitData(expr)
	}
	for _, v := range variables {
		p.awaitLabel(v)
	}
	for _, rule := range p.awaitRules() {
		for _, selector := range regexp.MustCompile(`redisdelay[:_][\w:]+(\{[^}]*\})?(\[\w+\])?`).FindAllString(rule, -1) {
			if strings.HasSuffix(selector, "]") {
				selector = "rate(" + selector + ")"
			}
			p.awaitData(selector)
		}
	}
}

// traffic has a group whose messages are acked, retried and dead, one whose topic is paused, and
// one that is paused itself.
func traffic(t *testing.T, client redis.UniversalClient, a *admin.Admin) {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client}, nil)
	require.NoError(t, err)
	sub, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client,
		Backoff: func(int) time.Duration { return time.Hour }}, nil)
	require.NoError(t, err)
	paused, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: client, ConsumerGroup: "paused"}, nil)
	require.NoError(t, err)
	messages, err := sub.Subscribe(ctx, "orders")
	require.NoError(t, err)
	require.NoError(t, paused.SubscribeInitialize("orders"))
	require.NoError(t, paused.SubscribeInitialize("mails"))
	_, err = a.Pause(ctx, "orders", admin.PauseOptions{Scope: admin.InGroup("paused")})
	require.NoError(t, err)
	_, err = a.Pause(ctx, "mails", admin.PauseOptions{})
	require.NoError(t, err)

	recurring, err := periodic.New(periodic.Config{Publisher: publisher, Poll: 100 * time.Millisecond}, nil)
	require.NoError(t, err)
	for name, spec := range map[string]string{"each second": "@every 1s", "paused": "@daily"} {
		require.NoError(t, recurring.Add(periodic.Schedule{Name: name, Topic: "reports", Spec: spec,
			Message: func(periodic.Occurrence) (*message.Message, error) { return message.NewMessage("", nil), nil }}))
	}
	running, stopRecurring := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- recurring.Run(running) }()
	require.Eventually(t, func() bool {
		_, _, err := a.PauseSchedule(ctx, "reports", "paused", admin.PauseOptions{})
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)

	publish := func(kind string, delay time.Duration) {
		msg := message.NewMessage(kind, nil)
		redisdelay.DelayFor(msg, delay)
		if err := publisher.Publish("orders", msg); err != nil {
			t.Error(err)
		}
	}
	publish("later", time.Hour)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		kinds := []string{"ack", "ack", "ack", "nack", "die"}
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				publish(kinds[n%len(kinds)], 10*time.Millisecond)
			}
		}
	}()
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		for msg := range messages {
			switch msg.UUID {
			case "die":
				redisdelay.DeadOnNack(msg, fmt.Errorf("it asked for it"))
				msg.Nack()
			case "nack":
				msg.Nack()
			default:
				msg.Ack()
			}
		}
	}()
	t.Cleanup(func() {
		stopRecurring()
		require.NoError(t, <-ran)
		close(stop)
		<-stopped
		require.NoError(t, publisher.Close())
		require.NoError(t, sub.Close())
		require.NoError(t, paused.Close())
		<-handled
	})
}

// export serves the metrics, and returns the address.
func export(t *testing.T, config promredisdelay.Config) string {
	t.Helper()
	collector, err := promredisdelay.New(config)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// readBoard returns the text of the board, and the expressions of its panels and variables.
func readBoard(t *testing.T) (text string, expressions, variables []string) {
	t.Helper()
	raw, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Definition string } }
	}
	require.NoError(t, json.Unmarshal(raw, &board))
	values := strings.NewReplacer("$topic", ".*", "$group", ".*", "$__rate_interval", "10s")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expressions = append(expressions, values.Replace(target.Expr))
		}
	}
	for _, variable := range board.Templating.List {
		if variable.Definition != "" {
			variables = append(variables, values.Replace(variable.Definition))
		}
	}
	require.Greater(t, len(expressions), 30)
	require.Len(t, variables, 2)
	return string(raw), expressions, variables
}

// server is a running Prometheus.
type server struct {
	*testing.T
	url string
}

// startPrometheus starts a Prometheus with the rules that scrapes an address.
func startPrometheus(t *testing.T, target string) *server {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil && os.Getenv("REDISTEST_REQUIRED") == "1" {
		out, err := exec.Command("../scripts/install.sh", "prometheus").CombinedOutput()
		require.NoError(t, err, string(out))
		program, err = exec.LookPath("prometheus")
		require.NoError(t, err)
	} else if err != nil {
		t.Skip("there is no prometheus in PATH")
	}
	dir := t.TempDir()
	for _, name := range []string{"alerts.yml", "slo.yml"} {
		rules, err := os.ReadFile(name)
		require.NoError(t, err)
		often := strings.ReplaceAll(string(rules), "interval: 5m", "interval: 1s")
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(often), 0o600))
	}
	config := fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [alerts.yml, slo.yml]
scrape_configs: [{job_name: redisdelay, static_configs: [{targets: ["%s"]}]}]
`, target)
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	address := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort())
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address,
		"--log.level=warn")
	var said strings.Builder
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	s := &server{t, "http://" + address}
	s.eventually("Prometheus does not start", func() bool {
		answer, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return s
}

func (s *server) eventually(what string, holds func() bool) {
	s.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
		require.True(s, time.Now().Before(end), what)
	}
}

// ask decodes the data of an answer of Prometheus.
func (s *server) ask(path string, values url.Values, data any) {
	s.Helper()
	response, err := http.Get(s.url + path + "?" + values.Encode())
	require.NoError(s, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(s, err)
	require.Equal(s, http.StatusOK, response.StatusCode, "%v: %s", values, text)
	answer := struct{ Data any }{data}
	require.NoError(s, json.Unmarshal(text, &answer))
}

// query returns whether an expression has a value that is a number.
func (s *server) query(expr string) bool {
	s.Helper()
	var data struct {
		Result []struct{ Value [2]any }
	}
	s.ask("/api/v1/query", url.Values{"query": {expr}}, &data)
	for _, one := range data.Result {
		if v, err := strconv.ParseFloat(one.Value[1].(string), 64); err == nil && !math.IsNaN(v) {
			return true
		}
	}
	return false
}

func (s *server) awaitData(expr string) {
	s.Helper()
	s.eventually("no data: "+expr, func() bool { return s.query(expr) })
}

// awaitLabel waits for values of a variable of the board: label_values(<selector>, <label>).
func (s *server) awaitLabel(definition string) {
	s.Helper()
	part := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(definition)
	require.NotNil(s, part, definition)
	s.eventually("no values: "+definition, func() bool {
		var values []string
		s.ask("/api/v1/label/"+part[2]+"/values", url.Values{"match[]": {part[1]}}, &values)
		return len(values) > 0
	})
}

// awaitRules waits until all rules were evaluated without an error, and returns their expressions.
func (s *server) awaitRules() (queries []string) {
	s.Helper()
	s.eventually("rules are not evaluated", func() bool {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Query, Health, LastError string }
			}
		}
		s.ask("/api/v1/rules", nil, &data)
		queries = nil
		for _, group := range data.Groups {
			for _, rule := range group.Rules {
				require.Empty(s, rule.LastError, rule.Name)
				if rule.Health != "ok" {
					return false
				}
				queries = append(queries, rule.Query)
			}
		}
		return len(queries) > 15
	})
	return queries
}
