package admin_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

var update = flag.Bool("update", false, "write the golden files")

// printed are all types that tools print as JSON.
var printed = []any{
	admin.Stats{}, admin.GroupStats{}, admin.Removal{}, admin.Pause{}, admin.Readiness{}, admin.TopicReadiness{},
	admin.Message{}, admin.Place{}, admin.Page{}, admin.Bucket{}, admin.Progress{}, admin.DeadReasons{},
	admin.DeadReason{}, admin.Finding{}, admin.Report{}, admin.Repaired{}, admin.Mending{}, admin.Schedule{},
	admin.TopicSchedules{}, admin.Worker{}, admin.Diagnosis{}, admin.Problem{}, admin.Folded{}, admin.Ignored{}, admin.TopicMemory{}, admin.MemoryUse{}, admin.Act{}, admin.Letter{}, admin.Partitioning{}, admin.Tailed{}, admin.Addition{},
	admin.GroupCounters{}, admin.GroupLimit{}, admin.LimitChange{},
	admin.Found{}, admin.SearchedTopic{}, admin.Moved{}, admin.Stay{}, admin.Restored{},
	admin.GroupHistory{}, admin.HistoryChange{}, admin.Ended{}, admin.HistoryPage{},
}

// filled sets each exported field of a value to something, and each text to one.
func filled(v reflect.Value, one string) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 5, 4, 5, 67_890_123, time.FixedZone("", 7200))))
		return
	case time.Duration:
		v.SetInt(int64(90*time.Second + 500*time.Millisecond))
		return
	case []byte:
		v.SetBytes([]byte("pay <load>" + strings.TrimPrefix(one, "text")))
		return
	case []admin.Stats: // a partition has no partitions
		v.Set(reflect.ValueOf([]admin.Stats{{Topic: one}}))
		return
	case admin.Lateness:
		var all admin.Lateness
		for _, bucket := range all.Buckets() {
			all.Add(bucket.AtMost, 7)
		}
		v.Set(reflect.ValueOf(all))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				filled(v.Field(i), one)
			}
		}
	case reflect.Interface: // an error
		v.Set(reflect.ValueOf(errors.New("why")))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), one)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		filled(v.Index(0), one)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), reflect.ValueOf("value"+strings.TrimPrefix(one, "text")).Convert(v.Type().Elem()))
	case reflect.String:
		v.SetString(one)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic(v.Type())
	}
}

// The names and forms are an interface for scripts.
func TestJSONOfWhatToolsPrint(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, zero := range printed {
		full := reflect.New(reflect.TypeOf(zero)).Elem()
		filled(full, "text")
		for _, v := range []any{zero, full.Interface()} {
			text, err := json.Marshal(v)
			require.NoError(t, err)
			fmt.Fprintf(&b, "%T %s\n", v, text)
		}
	}
	const golden = "testdata/json.golden"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String())
}

func TestJSONOfBytesAndLimits(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(admin.Message{ID: "1", Payload: []byte{0xff, 0}, Err: errors.New("why")})
	require.NoError(t, err)
	require.Equal(t, `{"id":"1","payload_base64":"/wA=","error":"why","places":[]}`, string(text))
	text, err = json.Marshal(admin.Message{ID: "1", UUID: "\xff", Metadata: map[string]string{"k": "\xfe", "plain": "v"}})
	require.NoError(t, err)
	require.Equal(t, `{"id":"1","uuid_base64":"/w==","metadata_base64":{"aw==":"/g=="},"metadata":{"plain":"v"},"places":[]}`, string(text))
	text, err = json.Marshal(admin.GroupStats{DeadRetention: -1})
	require.NoError(t, err)
	require.Contains(t, string(text), `"dead_retention":"unlimited"`)
}

// kept returns a value as JSON keeps it: times to the millisecond, in UTC. It has neither
// subscriptions nor what is for Restore, which are for this process alone.
func kept(v reflect.Value) {
	switch is := v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(is.UTC().Truncate(time.Millisecond)))
		return
	case admin.Lateness:
		return
	case admin.Place:
		v.FieldByName("Subscription").SetString("")
	case admin.Message:
		v.FieldByName("Stored").SetZero()
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				kept(v.Field(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			kept(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			kept(v.Index(i))
		}
	}
}

// A program can read what tools print with the types of this package, also of a later version.
func TestWhatToolsPrintCanBeReadBack(t *testing.T) {
	t.Parallel()
	for _, zero := range printed {
		full, bytes := reflect.New(reflect.TypeOf(zero)), reflect.New(reflect.TypeOf(zero))
		filled(full.Elem(), "text")
		filled(bytes.Elem(), "text\xff")
		for _, v := range []reflect.Value{reflect.New(reflect.TypeOf(zero)), full, bytes} {
			text, err := json.Marshal(v.Interface())
			require.NoError(t, err)
			later := `{"of_a_later_version":{"id":[1]},` + strings.TrimPrefix(string(text), "{")
			for _, text := range []string{string(text), strings.Replace(later, ",}", "}", 1)} {
				got := reflect.New(reflect.TypeOf(zero))
				require.NoError(t, json.Unmarshal([]byte(text), got.Interface()), text)
				kept(v.Elem())
				require.Equal(t, v.Interface(), got.Interface(), text)
			}
		}
		require.Error(t, json.Unmarshal([]byte(`[1]`), reflect.New(reflect.TypeOf(zero)).Interface()), "%T", zero)
	}
	var got admin.GroupStats
	require.NoError(t, json.Unmarshal([]byte(`{"dead_retention":"unlimited","group_base64":"/w==","lateness":null}`), &got))
	require.Equal(t, admin.GroupStats{DeadRetention: -1, Group: "\xff"}, got)
	require.ErrorContains(t, json.Unmarshal([]byte(`{"groups":[{"max_lateness":"late"}]}`), &admin.Stats{}), "groups: max_lateness: ")
	var failed admin.Message
	require.NoError(t, json.Unmarshal([]byte(`{"id":"1","error":"why"}`), &failed))
	require.EqualError(t, failed.Err, "why")
}

// Each struct of this package whose fields have JSON names is in the golden file, itself or in one
// that is.
func TestAllThatToolsPrintIsInTheGoldenFile(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	var see func(t reflect.Type)
	see = func(t reflect.Type) {
		switch {
		case t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer:
			see(t.Elem())
		case t.Kind() == reflect.Struct && !seen[t.Name()]:
			seen[t.Name()] = true
			for i := range t.NumField() {
				see(t.Field(i).Type)
			}
		}
	}
	for _, v := range printed {
		see(reflect.TypeOf(v))
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?s)\ntype ([A-Z]\\w*) struct \\{\n(.*?)\n\\}\n").FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[2], "`json:") {
				found++
				require.True(t, seen[m[1]], "%s of %s", m[1], file)
			}
		}
	}
	require.Greater(t, found, 20)
}
