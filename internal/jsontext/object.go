// Package jsontext writes structs as JSON objects that people and scripts read, and reads them.
// Package admin and the tool use it. Open object.go.
package jsontext

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

// TimeForm is RFC 3339 with milliseconds, which is how exactly Redis keeps times.
const TimeForm = "2006-01-02T15:04:05.000Z07:00"

// Object returns a struct as a JSON object. Each exported field needs a tag, with the options of
// encoding/json. In addition:
//
//   - A time is RFC 3339 in UTC with milliseconds, and left out if it is zero.
//   - A duration is a text such as "1m30s", and "unlimited" if it is negative.
//   - An error is its text, and left out if it is nil.
//   - Bytes are a text if they are UTF-8.
//   - A nil slice is an empty list.
//   - Texts and bytes that are not UTF-8 are base64 with padding, and "_base64" is added to the
//     name. A list of texts is base64 as a whole if one of them is not UTF-8. Of a map of texts,
//     the pairs that are not UTF-8 are in a second map, keys and values in base64.
func Object(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := fields(&b, reflect.Indirect(reflect.ValueOf(v))); err != nil {
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
			is = known.UTC().Format(TimeForm)
		case time.Duration:
			is = known.String()
			if known < 0 {
				is = "unlimited"
			}
		case error:
			name, is = text(name, known.Error())
		case []byte:
			name, is = text(name, string(known))
		default:
			switch {
			case value.Kind() == reflect.Interface && value.IsNil():
				continue
			case value.Kind() == reflect.Slice && value.IsNil():
				is = []int{}
			case value.Kind() == reflect.String:
				name, is = text(name, value.String())
			case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.String:
				name, is = texts(name, value)
			case value.Kind() == reflect.Map && value.Type().Key().Kind() == reflect.String && value.Type().Elem().Kind() == reflect.String:
				plain, other := split(value)
				if len(other) > 0 {
					if err := write(b, name+suffix, other); err != nil {
						return err
					}
					if len(plain) == 0 {
						continue
					}
				}
				is = plain
			}
		}
		if err := write(b, name, is); err != nil {
			return err
		}
	}
	return nil
}

// suffix ends the names of fields whose texts are base64.
const suffix = "_base64"

// write writes a field with a comma behind it. Characters of HTML stay as they are.
func write(b *bytes.Buffer, name string, is any) error {
	fmt.Fprintf(b, "%q:", name)
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(is); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the line break
	b.WriteByte(',')
	return nil
}

// text returns the field of a text.
func text(name, value string) (string, any) {
	if utf8.ValidString(value) {
		return name, value
	}
	return name + suffix, base64.StdEncoding.EncodeToString([]byte(value))
}

// texts returns the field of a list of texts.
func texts(name string, value reflect.Value) (string, any) {
	plain, encoded, valid := make([]string, value.Len()), make([]string, value.Len()), true
	for i := range plain {
		plain[i] = value.Index(i).String()
		encoded[i] = base64.StdEncoding.EncodeToString([]byte(plain[i]))
		valid = valid && utf8.ValidString(plain[i])
	}
	if valid {
		return name, plain
	}
	return name + suffix, encoded
}

// split returns the pairs that are UTF-8, and the others in base64.
func split(value reflect.Value) (plain, encoded map[string]string) {
	plain, encoded = map[string]string{}, map[string]string{}
	for pairs := value.MapRange(); pairs.Next(); {
		key, of := pairs.Key().String(), pairs.Value().String()
		if utf8.ValidString(key) && utf8.ValidString(of) {
			plain[key] = of
		} else {
			encoded[base64.StdEncoding.EncodeToString([]byte(key))] = base64.StdEncoding.EncodeToString([]byte(of))
		}
	}
	return plain, encoded
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
