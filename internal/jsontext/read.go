package jsontext

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Fields are the fields of a JSON object that Object has written.
type Fields map[string]json.RawMessage

// Read reads an object. It refuses text that is not UTF-8.
func Read(object []byte) (Fields, error) {
	if !utf8.Valid(object) {
		return nil, errors.New("it is not UTF-8") // the decoder would silently replace bytes
	}
	var f Fields
	if err := json.Unmarshal(object, &f); err != nil {
		return nil, err
	}
	return f, nil
}

// Text returns a text field, "" if there is none.
func (f Fields) Text(name string) (string, error) {
	var plain, encoded string
	if err := f.read(name, &plain); err != nil {
		return "", err
	}
	if err := f.read(name+suffix, &encoded); err != nil {
		return "", err
	}
	if encoded == "" {
		return plain, nil
	}
	if plain != "" {
		return "", fmt.Errorf("both %s and %s%s", name, name, suffix)
	}
	decoded, err := decode(name, encoded)
	return decoded, err
}

// Texts returns a map of texts, empty if there is none.
func (f Fields) Texts(name string) (map[string]string, error) {
	all, encoded := map[string]string{}, map[string]string{}
	if err := f.read(name, &all); err != nil {
		return nil, err
	}
	if err := f.read(name+suffix, &encoded); err != nil {
		return nil, err
	}
	if all == nil { // null
		all = map[string]string{}
	}
	for key, value := range encoded {
		key, err := decode(name, key)
		if err != nil {
			return nil, err
		}
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("%s: a key is repeated", name+suffix)
		}
		if all[key], err = decode(name, value); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// read reads a field into a value, which stays as it is if there is no such field.
func (f Fields) read(name string, to any) error {
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
