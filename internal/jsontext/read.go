package jsontext

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// Read fills the struct to which to points from an object that Object has written. A field that the
// object lacks, or has as null, stays as it is. Others of the object are ignored. An empty list or
// map is read as nil, and an empty text of bytes as empty ones. Of an error only the text comes
// back, and each negative duration as -1. Read refuses text that is not UTF-8. The error names the
// fields that cannot be read.
func Read(object []byte, to any) error {
	if !utf8.Valid(object) {
		return errors.New("it is not UTF-8") // the decoder would silently replace bytes
	}
	var f found
	if err := json.Unmarshal(object, &f); err != nil {
		return err
	}
	for name, raw := range f {
		if string(raw) == "null" {
			delete(f, name)
		}
	}
	return f.fields(reflect.ValueOf(to).Elem())
}

// found has the fields of an object.
type found map[string]json.RawMessage

// fields fills a struct.
func (f found) fields(v reflect.Value) error {
	var errs []error
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			errs = append(errs, f.fields(v.Field(i)))
		case field.IsExported() && name != "-" && (f[name] != nil || f[name+suffix] != nil):
			errs = append(errs, f.field(name, v.Field(i)))
		}
	}
	return errors.Join(errs...)
}

// field fills a field that the object has.
func (f found) field(name string, v reflect.Value) (err error) {
	switch to := v.Addr().Interface().(type) {
	case *time.Duration:
		var written string
		if err := f.read(name, &written); err != nil {
			return err
		}
		if *to = -1; written != "unlimited" {
			if *to, err = time.ParseDuration(written); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	case *error:
		written, err := f.text(name)
		*to = errors.New(written)
		return err
	case *[]byte:
		written, err := f.text(name)
		*to = []byte(written)
		return err
	}
	isText := func(t reflect.Type) bool { return t.Kind() == reflect.String }
	switch t := v.Type(); {
	case isText(t):
		written, err := f.text(name)
		v.SetString(written)
		return err
	case t.Kind() == reflect.Slice && isText(t.Elem()):
		err = f.texts(name, v)
	case t.Kind() == reflect.Map && isText(t.Key()) && isText(t.Elem()):
		err = f.pairs(name, v)
	default:
		err = f.read(name, v.Addr().Interface())
	}
	if k := v.Kind(); (k == reflect.Slice || k == reflect.Map) && v.Len() == 0 {
		v.SetZero()
	}
	return err
}

// text returns a text.
func (f found) text(name string) (string, error) {
	var plain, encoded string
	if err := errors.Join(f.read(name, &plain), f.read(name+suffix, &encoded)); err != nil || encoded == "" {
		return plain, err
	}
	if plain != "" {
		return "", fmt.Errorf("both %s and %s%s", name, name, suffix)
	}
	return decode(name, encoded)
}

// texts fills a list of texts.
func (f found) texts(name string, v reflect.Value) error {
	var plain, encoded []string
	if err := errors.Join(f.read(name, &plain), f.read(name+suffix, &encoded)); err != nil {
		return err
	}
	for _, one := range encoded {
		decoded, err := decode(name, one)
		if err != nil {
			return err
		}
		plain = append(plain, decoded)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(plain), len(plain)))
	for i, one := range plain {
		v.Index(i).SetString(one)
	}
	return nil
}

// pairs fills a map of texts.
func (f found) pairs(name string, v reflect.Value) error {
	var plain, encoded map[string]string
	if err := errors.Join(f.read(name, &plain), f.read(name+suffix, &encoded)); err != nil {
		return err
	}
	v.Set(reflect.MakeMap(v.Type()))
	set := func(key, value string) {
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), reflect.ValueOf(value).Convert(v.Type().Elem()))
	}
	for key, value := range plain {
		set(key, value)
	}
	for key, value := range encoded {
		key, err := decode(name, key)
		if err != nil {
			return err
		}
		if _, twice := plain[key]; twice {
			return fmt.Errorf("%s: a key is repeated", name+suffix)
		}
		if value, err = decode(name, value); err != nil {
			return err
		}
		set(key, value)
	}
	return nil
}

// read reads a field into a value, which stays as it is if there is no such field.
func (f found) read(name string, to any) error {
	raw, there := f[name]
	if !there {
		return nil
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func decode(name, encoded string) (string, error) {
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("%s%s: %w", name, suffix, err)
	}
	return string(decoded), nil
}
