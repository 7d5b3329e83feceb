package admin_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
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
	admin.TopicSchedules{}, admin.Worker{}, admin.Diagnosis{}, admin.Problem{}, admin.Act{}, admin.Partitioning{}, admin.Tailed{},
}

// filled sets each exported field of a value to something.
func filled(v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 5, 4, 5, 67_890_123, time.FixedZone("", 7200))))
		return
	case time.Duration:
		v.SetInt(int64(90*time.Second + 500*time.Millisecond))
		return
	case []byte:
		v.SetBytes([]byte("pay <load>"))
		return
	case []admin.Stats: // a partition has no partitions
		v.Set(reflect.ValueOf([]admin.Stats{{Topic: "text"}}))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				filled(v.Field(i))
			}
		}
	case reflect.Interface: // an error
		v.Set(reflect.ValueOf(errors.New("why")))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem())
	case reflect.Array:
		for i := range v.Len() {
			filled(v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		filled(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key").Convert(v.Type().Key()), reflect.ValueOf("value").Convert(v.Type().Elem()))
	case reflect.String:
		v.SetString("text")
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
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
		filled(full)
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
