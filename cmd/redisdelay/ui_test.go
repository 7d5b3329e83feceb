package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// page starts the command ui, and returns the address that it prints.
func page(t *testing.T, environment []string, args ...string) (p *tool, address string) {
	t.Helper()
	p = start(t, environment, append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...)
	said := regexp.MustCompile(`http://[0-9.:]+/`)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		address = said.FindString(p.logged.String())
		return address != ""
	}, patience, 10*time.Millisecond)
	return p, address
}

func loaded(t *testing.T, request *http.Request) (status int, body string) {
	t.Helper()
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestUIShowsLivingSampleTraffic(t *testing.T) {
	t.Parallel()
	_, address := page(t, nil, "--demo")
	get := func() string {
		request, err := http.NewRequest(http.MethodGet, address, nil)
		require.NoError(t, err)
		_, body := loaded(t, request)
		return body
	}
	require.Eventually(t, func() bool {
		body := get()
		for _, topic := range []string{"mails", "payments", "reminders", "reports", "unpaid-orders", "webhooks"} {
			if !strings.Contains(body, topic) {
				return false
			}
		}
		return !strings.Contains(body, "read-only")
	}, patience, 100*time.Millisecond)
}

func TestUIAsksForThePassword(t *testing.T) {
	t.Parallel()
	p, address := page(t, []string{"REDISDELAY_UI_PASSWORD=tea", "REDISDELAY_REDIS=localhost:1"}, "--ui-user", "ann")
	request, err := http.NewRequest(http.MethodGet, address+"assets/app.css", nil)
	require.NoError(t, err)
	status, _ := loaded(t, request)
	require.Equal(t, http.StatusOK, status)
	request, err = http.NewRequest(http.MethodGet, address, nil)
	require.NoError(t, err)
	status, _ = loaded(t, request)
	require.Equal(t, http.StatusUnauthorized, status)
	request.SetBasicAuth("ann", "tea")
	require.Eventually(t, func() bool {
		status, body := loaded(t, request)
		return status == http.StatusBadGateway && strings.Contains(body, "Redis does not answer") && strings.Contains(body, "read-only")
	}, patience, 50*time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotContains(t, p.logged.String(), "tea")
}

func TestUIRefusesUnsafeSettings(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--listen :0":           "without Authenticate",
		"--ui-user ann":         "REDISDELAY_UI_PASSWORD",
		"--proxy-header X-User": "--proxies",
		"--proxy-header X-User --proxies 10.0.0.5":       "is no network",
		"--proxies 10.0.0.5/32":                          "--proxy-header",
		"--path redisdelay/":                             "Prefix",
		"--hosts https://ops.example.com":                "Hosts",
		"--ui-user ann --proxy-header X --proxies ::1/1": "one of them",
		"--ui-password tea":                              "visible to everybody",
	} {
		status, _, said := says([]string{"REDISDELAY_REDIS=localhost:1"}, append([]string{"ui"}, strings.Fields(args)...)...)
		require.Equal(t, exitRefused, status, args)
		require.Contains(t, said, want, args)
		require.NotContains(t, said, "ui-password tea")
	}
}
