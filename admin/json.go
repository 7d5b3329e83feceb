package admin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// timeForm is RFC 3339 with milliseconds, which is how exactly Redis keeps times.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

// object returns a struct as a JSON object that people and scripts read. Each exported field needs
// a tag, with the options of encoding/json. In addition:
//
//   - A time is RFC 3339 in UTC with milliseconds, and left out if it is zero.
//   - A duration is a text such as "1m30s", and "unlimited" if it is negative.
//   - An error is its text, and left out if it is nil.
//   - Bytes are a text if they are UTF-8. Else they are base64, and "_base64" is added to the name.
//   - A nil slice is an empty list.
func object(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := fields(&b, reflect.ValueOf(v)); err != nil {
		return nil, err
	}
	b.Truncate(max(b.Len()-1, 0)) // the last comma
	return fmt.Appendf(nil, "{%s}", b.Bytes()), nil
}

// fields writes the fields of a struct, each with a comma behind it.
func fields(b *bytes.Buffer, v reflect.Value) error {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			if err := fields(b, value); err != nil {
				return err
			}
			continue
		case !field.IsExported() || name == "-" || options == "omitempty" && isEmpty(value):
			continue
		case name == "":
			return fmt.Errorf("field %s of %v has no JSON name", field.Name, v.Type())
		}
		is := value.Interface()
		switch known := is.(type) {
		case time.Time:
			if known.IsZero() {
				continue
			}
			is = known.UTC().Format(timeForm)
		case time.Duration:
			is = known.String()
			if known < 0 {
				is = "unlimited"
			}
		case error:
			is = known.Error()
		case []byte:
			is = string(known)
			if !utf8.Valid(known) {
				name, is = name+"_base64", base64.StdEncoding.EncodeToString(known)
			}
		default:
			if value.Kind() == reflect.Interface && value.IsNil() {
				continue
			}
			if value.Kind() == reflect.Slice && value.IsNil() {
				is = []int{}
			}
		}
		text, err := json.Marshal(is)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "%q:%s,", name, text)
	}
	return nil
}

// isEmpty is what encoding/json means by omitempty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// MarshalJSON writes the fields as docs/control.md says.
func (s Stats) MarshalJSON() ([]byte, error) { return object(s) }

// MarshalJSON writes the fields as docs/control.md says.
func (g GroupStats) MarshalJSON() ([]byte, error) { return object(g) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Removal) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Pause) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Readiness) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (t TopicReadiness) MarshalJSON() ([]byte, error) { return object(t) }

// MarshalJSON writes the fields as docs/control.md says.
func (m Message) MarshalJSON() ([]byte, error) { return object(m) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Place) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Page) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (b Bucket) MarshalJSON() ([]byte, error) { return object(b) }

// MarshalJSON writes the fields as docs/control.md says.
func (p Progress) MarshalJSON() ([]byte, error) { return object(p) }

// MarshalJSON writes the fields as docs/control.md says.
func (r DeadReasons) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (r DeadReason) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (f Finding) MarshalJSON() ([]byte, error) { return object(f) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Report) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (r Repaired) MarshalJSON() ([]byte, error) { return object(r) }

// MarshalJSON writes the fields as docs/control.md says.
func (m Mending) MarshalJSON() ([]byte, error) { return object(m) }
