package main

import (
	"errors"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// An operator asks in the morning why a nightly job did not run.
func TestTheToolSaysWhyAScheduleDidNotRun(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := newWorld(t, server.Client(t), server.Addr())
	broken := make(chan struct{}) // closed when the job is mended
	p, err := periodic.New(periodic.Config{Publisher: w.publisher}, nil)
	require.NoError(t, err)
	require.NoError(t, p.Add(periodic.Schedule{Name: "nightly", Topic: "reports", Spec: "0 3 * * *", Message: func(periodic.Occurrence) (*message.Message, error) {
		select {
		case <-broken:
			return message.NewMessage(watermill.NewUUID(), nil), nil
		default:
			return nil, errors.New("no file /var/report")
		}
	}}))
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	running.Go(func() { _ = p.Run(t.Context()) })
	var said string
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, said, _ = w.run("", "schedules", "show", "reports", "nightly")
		return regexp.MustCompile(`last error   \S+ \S+ on ` + host + `: occurrence \S+: make message: no file /var/report; 1 failure since`).MatchString(said)
	}, patience, 10*time.Millisecond, said)
	require.Contains(t, said, "it is not in Redis: the programs that run the schedule fail")
	_, said, _ = w.run("", "schedules", "ls")
	require.Regexp(t, `FAILS WITH\n.* occurrence .*make message: no`, said)

	status, said, _ := w.run("", "schedules", "run", "reports", "nightly", "--yes")
	require.Equal(t, 1, status)
	require.Regexp(t, `^Asked for occurrence nightly@\d+ of schedule "nightly" of topic "reports", but a program failed to publish it: .*no file`, said)
	require.Eventually(t, func() bool {
		_, said, _ = w.run("", "doctor", "--late", "1ms")
		return regexp.MustCompile(`Its last error, \S+ ago on ` + host + `: ".*no file /var/report"`).MatchString(said)
	}, patience, 10*time.Millisecond)
	close(broken)
	status, said, _ = w.run("", "schedules", "run", "reports", "nightly", "--yes")
	require.Zero(t, status, said)
	require.Regexp(t, `^A program has published occurrence nightly@\d+ of schedule`, said)
	_, said, _ = w.run("", "schedules", "show", "reports", "nightly")
	require.Regexp(t, `last error .*; an occurrence was published after it`, said)
}
