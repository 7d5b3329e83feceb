package admin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// record writes the record of an hourly schedule of topic "orders".
func (s *setup) record(t *testing.T, name string, cursor, paused, run, counted time.Time, definition string) {
	t.Helper()
	ms := func(at time.Time) int64 {
		if at.IsZero() {
			return 0
		}
		return at.UnixMilli()
	}
	text := fmt.Sprintf("1 %d %d %d 0 0 3 %d 0 - - - %s", ms(cursor), ms(paused), ms(run), ms(counted), definition)
	require.NoError(t, s.Client.HSet(ctx, s.keys.Schedules(), queue.EncodeName(name), text).Err())
}

func TestDiagnoseFindsSchedulesThatNobodyRuns(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: noon})
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	messages := s.subscribe(t, "a")
	defer func() { require.Empty(t, messages) }()
	const hourly, ended = `{"spec":"@hourly","zone":"UTC","misfire":"last"}`, `{"spec":"@hourly","zone":"UTC","misfire":"last","end":"2026-03-04T10:00:00Z"}`
	none, before := time.Time{}, func(d time.Duration) time.Time { return noon.Add(-d) }

	s.record(t, "well", noon, none, none, none, hourly)
	s.record(t, "late by less", before(time.Hour), none, none, none, hourly)
	s.record(t, "over", before(3*time.Hour), none, none, none, ended)
	s.record(t, "missed long ago", noon, none, none, before(25*time.Hour), hourly)
	_, kinds := s.diagnose(t, admin.DiagnoseOptions{})
	require.Empty(t, kinds)

	s.record(t, "stopped", before(2*time.Hour), none, none, none, hourly)
	s.record(t, "-asked", noon, none, before(2*time.Minute), none, hourly)
	s.record(t, "missed", noon, none, none, before(time.Hour), hourly)
	s.record(t, "paused", before(5*time.Hour), before(time.Hour), none, none, hourly)
	s.record(t, "of Mars", noon, none, none, none, `{"spec":"@hourly","zone":"Mars","misfire":"last"}`)
	problems, kinds := s.diagnose(t, admin.DiagnoseOptions{})
	require.Equal(t, []string{"critical stopped schedule orders/", "critical stopped schedule orders/", "notice missed occurrences orders/",
		"notice stopped schedule orders/", "notice paused schedule orders/"}, kinds)
	var texts []string
	for _, p := range problems {
		texts = append(texts, p.Text, fmt.Sprint(p.Mend))
	}
	require.Equal(t, []string{
		`No program publishes schedule "stopped" of topic "orders", and an occurrence has been due for 1h0m0s: run a program that has it, or look at its log.`,
		"[schedules show orders stopped]",
		`Somebody asked for an occurrence of schedule "-asked" of topic "orders" 2m0s ago, and no program publishes it: run a program that has it.`,
		"[schedules show orders -- -asked]",
		`Occurrences of schedule "missed" of topic "orders" were missed, which was found 1h0m0s ago.`,
		"[schedules show orders missed]",
		`It cannot be told whether a program publishes schedule "of Mars" of topic "orders": unknown time zone Mars.`,
		"[schedules show orders of Mars]",
		`A pause of schedule "paused" of topic "orders" has lasted for 1h0m0s.`,
		"[schedules resume orders paused]",
	}, texts)

	record := queue.EncodeName("stopped")
	text := fmt.Sprintf("1 %d 0 0 0 0 3 0 0 - - %d,2,%s,%s %s", before(2*time.Hour).UnixMilli(), before(time.Hour).UnixMilli(), queue.EncodeName("web-1"), queue.EncodeName("no file"), hourly)
	require.NoError(t, s.Client.HSet(ctx, s.keys.Schedules(), record, text).Err())
	problems, _ = s.diagnose(t, admin.DiagnoseOptions{})
	require.Contains(t, problems[0].Text, `run a program that has it, or look at its log. Its last error, 1h0m0s ago on web-1: "no file".`)

	s.record(t, "paused for long", before(50*time.Hour), before(49*time.Hour), none, none, hourly)
	s.record(t, "stopped before", before(4*time.Hour), none, none, none, hourly)
	problems, kinds = s.diagnose(t, admin.DiagnoseOptions{})
	require.Contains(t, kinds, "warning paused schedule orders/")
	require.Equal(t, `No program publishes 2 schedules of topic "orders", such as "stopped before", and an occurrence has been due for 3h0m0s: `+
		`run a program that has it, or look at its log.`, problems[0].Text)
	require.Equal(t, []string{"schedules", "ls", "orders"}, problems[0].Mend)
	_, kinds = s.diagnose(t, admin.DiagnoseOptions{Late: 24 * time.Hour})
	require.Equal(t, []string{"warning paused schedule orders/", "notice missed occurrences orders/", "notice stopped schedule orders/"}, kinds)
}

// A record from a time at which the server's clock was ahead is silent until then, unless a program
// looks at it.
func TestDiagnoseFindsSchedulesOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, time.March, 4, 12, 0, 0, 0, time.UTC)
	server := redisdelaytest.StartWith(t, redisdelaytest.Config{Now: noon})
	s := setupOn(t, redistest.Server{Client: server.Client(), Prefix: redisdelay.DefaultKeyPrefix})
	messages := s.subscribe(t, "a")
	defer func() { require.Empty(t, messages) }()
	const hourly = `{"spec":"@hourly","zone":"UTC","misfire":"last"}`
	none := time.Time{}
	s.record(t, "ahead", noon.Add(6*time.Hour), none, none, none, hourly)
	problems, kinds := s.diagnose(t, admin.DiagnoseOptions{})
	require.Equal(t, []string{"critical stopped schedule orders/"}, kinds)
	require.Equal(t, `The server's clock was ahead: the last occurrence of schedule "ahead" of topic "orders" is 6h0m0s after now, and until then none comes. `+
		`Run a program that has it: it has the schedule come back.`, problems[0].Text)
	require.Equal(t, []string{"schedules", "show", "orders", "ahead"}, problems[0].Mend)

	s.record(t, "ahead", noon, none, none, none, hourly)
	returned := func(at time.Time) {
		require.NoError(t, s.Client.HSet(ctx, s.keys.Counters(), "returned", 1, "returned_at", at.UnixMilli()).Err())
	}
	returned(noon.Add(-time.Hour))
	said := func() (text string) {
		d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
		require.NoError(t, err)
		for _, p := range d.Problems {
			if p.Kind == admin.Clock && p.Topic == "orders" {
				text += string(p.Severity) + ": " + p.Text
			}
		}
		return text
	}
	require.Contains(t, said(), "notice: The server's clock was ahead.")
	require.Contains(t, said(), "have come back, the last 1h0m0s ago")
	returned(noon.Add(-25 * time.Hour))
	require.Empty(t, said())
}
