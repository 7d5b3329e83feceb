package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// hiddenText stands for a value that is redacted.
const hiddenText = "[hidden]"

// hides returns whether the values of a key are never shown.
func (d *Dashboard) hides(key string) bool { return d.hidden[strings.ToLower(key)] }

// pair is a key of metadata and its value.
type pair struct {
	Key, Value string
	Hidden     bool
}

// metadata returns the metadata of a message in order of its keys, without what is redacted. Values
// are cut.
func (d *Dashboard) metadata(of map[string]string, most int) (pairs []pair) {
	for _, key := range slices.Sorted(maps.Keys(of)) {
		p := pair{Key: clip(key, most), Value: clip(of[key], most)}
		if d.hides(key) {
			p.Value, p.Hidden = hiddenText, true
		}
		pairs = append(pairs, p)
	}
	return pairs
}

// redacted returns JSON without the values of hidden keys, and whether the payload is JSON. Numbers
// and the order of keys stay as they are. Bytes that are not UTF-8 are replaced
// if something is redacted.
func (d *Dashboard) redacted(payload []byte) (result []byte, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(payload, []byte("\ufeff"))))
	decoder.UseNumber()
	var b bytes.Buffer
	if err := d.copyValue(&b, decoder, 0); errors.Is(err, errTooDeep) {
		return []byte("[hidden, because its objects are too deep in one another to be redacted]"), false
	} else if err != nil {
		return payload, false
	}
	if _, err := decoder.Token(); err != io.EOF {
		return payload, false
	}
	if !utf8.Valid(payload) && !bytes.Contains(b.Bytes(), []byte(hiddenText)) {
		return payload, false // its bytes are of interest
	}
	return b.Bytes(), true
}

// deepest is how deep objects may be in one another.
const deepest = 200

var errTooDeep = errors.New("too deep")

// copyValue copies the next value.
func (d *Dashboard) copyValue(b *bytes.Buffer, from *json.Decoder, depth int) error {
	token, err := from.Token()
	if err != nil {
		return err
	}
	if depth > deepest {
		return errTooDeep
	}
	open, isOpen := token.(json.Delim)
	if !isOpen {
		return encode(b, token)
	}
	b.WriteByte(byte(open))
	for first := true; from.More(); first = false {
		if !first {
			b.WriteByte(',')
		}
		hide := false
		if open == '{' {
			key, err := from.Token()
			if err != nil {
				return err
			}
			name, _ := key.(string)
			if hide = d.hides(name); encode(b, name) != nil {
				return io.ErrUnexpectedEOF
			}
			b.WriteByte(':')
		}
		into := b
		if hide {
			into = &bytes.Buffer{}
		}
		if err := d.copyValue(into, from, depth+1); err != nil {
			return err
		}
		if hide {
			_ = encode(b, hiddenText)
		}
	}
	end, err := from.Token()
	if err != nil {
		return err
	}
	closing, _ := end.(json.Delim)
	b.WriteByte(byte(closing))
	return nil
}

// encode writes a value as JSON, with text as it is.
func encode(b *bytes.Buffer, value any) error {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	b.Truncate(max(b.Len()-1, 0)) // the line break
	return err
}
