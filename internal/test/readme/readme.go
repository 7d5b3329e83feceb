// Package readme checks the configuration tables in documents against the code, in tests.
package readme

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// RequireTable checks that the table under a heading of a file has the fields of a configuration,
// in order, with their defaults. said has the texts of defaults that a value cannot show.
func RequireTable(t *testing.T, file, heading string, config any, said map[string]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n### "+heading+"\n")
	require.True(t, found, "%s has no heading %s", file, heading)
	section, _, _ = strings.Cut(section, "\n#")

	var want []string
	v := reflect.ValueOf(config)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		value, ok := said[name]
		if !ok {
			value = inWords(v.Field(i).Interface())
		}
		want = append(want, fmt.Sprintf("| `%s` | %s |", name, value))
	}
	require.Equal(t, want, regexp.MustCompile("(?m)^\\| `.*?\\|.*?\\|").FindAllString(section, -1), heading)
}

// inWords returns a default as the documents write it.
func inWords(value any) string {
	switch value := value.(type) {
	case nil:
		return "required"
	case string:
		return fmt.Sprintf("`%q`", value)
	case int:
		switch {
		case value > 0 && value%(1<<20) == 0:
			return fmt.Sprintf("%d MiB", value>>20)
		case value >= 1000:
			return fmt.Sprintf("%d,%03d", value/1000, value%1000)
		}
	case time.Duration:
		switch {
		case value == 0:
		case value%(24*time.Hour) == 0:
			return fmt.Sprintf("%d days", value/(24*time.Hour))
		case value%time.Hour == 0:
			return fmt.Sprintf("%dh", value/time.Hour)
		case value%time.Minute == 0:
			return fmt.Sprintf("%dm", value/time.Minute)
		}
	default:
		if v := reflect.ValueOf(value); v.Kind() == reflect.Struct && v.NumField() == 0 {
			return "`" + v.Type().Name() + "{}`"
		}
	}
	return fmt.Sprint(value)
}
