package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/redisdelay/watermill-redisdelay/periodic"
)

func TestSchedulesOfAFile(t *testing.T) {
	t.Parallel()
	schedules, err := readSchedules("testdata/schedules.yaml")
	require.NoError(t, err)
	require.Len(t, schedules, 2)
	s := schedules[0]
	msg, err := s.Message(periodic.Occurrence{})
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"daily"}`, string(msg.Payload))
	require.Equal(t, message.Metadata{"kind": "report", "max_deliveries": "3"}, msg.Metadata)
	require.Equal(t, "Europe/Berlin", s.Location.String())
	require.Len(t, s.Revision, 16)
	s.Message, s.Revision, s.Location = nil, "", nil
	require.Equal(t, periodic.Schedule{Name: "daily-report", Topic: "reports", Spec: "0 9 * * 1-5", Misfire: periodic.MisfireLast,
		MisfireWithin: 12 * time.Hour, Jitter: 10 * time.Minute, Start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		End: time.Date(2036, 1, 1, 0, 0, 0, 0, time.UTC)}, s)

	// The same as JSON, as other programs write it, is the same.
	var document map[string]any
	text, err := os.ReadFile("testdata/schedules.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &document))
	document["schedules"].([]any)[1].(map[string]any)["payload"] = "/😀\x7f\u2028"
	asJSON, err := json.MarshalIndent(document, "", "\t")
	require.NoError(t, err)
	const escaped = `\/\ud83d\ude00\u007f\u2028`
	again, err := readSchedules(file(t, strings.Replace(string(asJSON), "/😀\x7f\\u2028", escaped, 1)))
	require.NoError(t, err)
	require.Equal(t, schedules[0].Revision, again[0].Revision)
	msg, err = again[1].Message(periodic.Occurrence{})
	require.NoError(t, err)
	require.Equal(t, "/😀\x7f\u2028", string(msg.Payload))

	// A payload of a file is read from the directory of the schedules, and is in the revision.
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	name := filepath.Join(dir, "schedules.yaml")
	require.NoError(t, os.WriteFile(name, []byte(`schedules: [{name: a, topic: t, spec: "@daily", payload_file: sub/payload}]`), 0o600))
	revision := ""
	for _, payload := range []string{"x\xff", "y"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "payload"), []byte(payload), 0o600))
		read, err := readSchedules(name)
		require.NoError(t, err)
		msg, err := read[0].Message(periodic.Occurrence{})
		require.NoError(t, err)
		require.Equal(t, payload, string(msg.Payload))
		require.NotEqual(t, revision, read[0].Revision)
		revision = read[0].Revision
	}
}

// The files that docs/periodic.md and the help show can be run.
func TestSchedulesOfDocuments(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/periodic.md")
	require.NoError(t, err)
	_, inDocs, _ := strings.Cut(string(text), "```yaml\n")
	inDocs, _, _ = strings.Cut(inDocs, "```")
	_, inHelp, _ := strings.Cut(newApp(system{}).periodicCommand().Long, "  schedules:\n")
	for _, text := range []string{inDocs, "  schedules:\n" + inHelp} {
		schedules, err := readSchedules(file(t, text))
		require.NoError(t, err, text)
		require.Len(t, schedules, 1)
		for _, field := range scheduleFields {
			require.Contains(t, text, field.field)
		}
	}
}

func TestFaultsOfAFileOfSchedulesAreNamedByFieldAndLine(t *testing.T) {
	t.Parallel()
	const head = "schedules:\n  - name: a\n    topic: t\n    spec: '@daily'\n" // the next line is the fifth
	for text, want := range map[string][]string{
		"":                             {"line 1: schedules is missing"},
		"shedules: []":                 {`line 1: "shedules" is no field of the file; it may have schedules`},
		"schedules: x":                 {"line 1: schedules must be a list"},
		"schedules:\n  - x":            {"line 2: a schedule must have fields"},
		"[]":                           {"line 1: the file must have fields"},
		"schedules:\n  - spec: @daily": {"yaml: line 2: ", "a text that begins with *, @ or { needs quotes"},
		head + "---\na: b":             {"yaml: line 5: there is a second document"},
		"schedules:\n  - {}":           {"line 2: name is missing", "line 2: topic is missing", "line 2: spec is missing"},
		head + "  - name: a\n    spec: '61 * * * 8'\n    topic: t": {`line 5: name is "a", which another schedule of topic "t" has, in line 2`,
			`line 6: spec is "61 * * * 8": minute "61": `, `; day of week "8": `},
		head + "    topic: t\n":                {"line 5: topic is there twice; the first is in line 3"},
		head + "    sepc: x\n":                 {`line 5: "sepc" is no field of a schedule; it may have name, topic, spec, `},
		head + "    location: Europe/Berlim\n": {`line 5: location is "Europe/Berlim"; it must be the name of a time zone`},
		head + "    location: Local\n":         {`line 5: location is "Local"; it must be the name of a time zone`},
		head + "    payload: {a: b}\n":         {"line 5: payload must be a text; put it into quotes"},
		head + "    payload: x\n    payload_file: y\n": {"line 6: payload_file is there, and payload too", "line 6: payload_file: open ",
			"no such file"},
		head + "    metadata: x\n":                                                  {"line 5: metadata must have fields"},
		head + "    metadata:\n      k: v\n      delay_id: x\n":                     {"line 7: metadata has delay_id, which each occurrence gets"},
		head + "    metadata: {_watermill_delayed_until: '2026-01-01T00:00:00Z'}\n": {"line 5: metadata has a delay"},
		head + "    metadata: {max_deliveries: x}\n":                                {"line 5: metadata: ", "max_deliveries"},
		head + "    misfire: never\n":                                               {`line 5: misfire is "never"; want "last", "all" or "skip"`},
		head + "    misfire_within: 1\n":                                            {`line 5: misfire_within is "1"; it must be a duration such as 24h`},
		head + "    jitter: 25h\n":                                                  {"line 5: jitter is 25h0m0s; it has to be from 0 to 24h"},
		head + "    start: noon\n":                                                  {`line 5: start is "noon"; it must be a time such as 2026-01-01T00:00:00+01:00`},
		head + "    end: 2025-01-01T00:00:00Z\n    start: 2026-01-01T00:00:00Z\n":   {"line 5: end is 2025-01-01 00:00:00 +0000 UTC, which is not after"},
	} {
		name := file(t, text)
		status, out, said := says(nil, "periodic", "--check", "--file", name)
		require.Equal(t, exitRefused, status, "%s\n%s", text, said)
		require.Empty(t, out)
		for _, one := range want {
			require.Contains(t, said, one, text)
		}
		require.Contains(t, said, name)
	}
	status, _, said := says(nil, "periodic")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "--file is missing")
	status, _, said = says(nil, "periodic", "--file", "missing.yaml")
	require.Equal(t, exitRefused, status)
	require.Contains(t, said, "missing.yaml: no such file")
}

func FuzzScheduleFiles(f *testing.F) {
	f.Add("schedules: [{name: a, topic: t, spec: '@daily', metadata: &m {a: b}, <<: *m}]")
	f.Add(`{"schedules":[{"name":"\ud83d"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		name := file(t, text)
		schedules, err := readSchedules(name)
		for _, s := range schedules {
			require.False(t, err == nil && s.Validate() != nil)
		}
	})
}
