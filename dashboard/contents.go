package dashboard

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// Bounds of what is shown.
const (
	shown       = 64 << 10 // bytes of a payload that are looked at, and of each of its forms
	deepest     = 200      // objects in one another
	deepestText = 8        // texts of JSON in one another
)

const (
	hiddenWhole = "[hidden, because it looks like JSON and cannot be read]"
	hiddenDeep  = "[hidden, because its objects are too deep in one another to be redacted]"
)

// content is a payload in the forms in which it is shown.
type content struct {
	JSON, Text, Hex string
	Cut             bool // only the beginning is shown
}

// contentOf returns the forms of a payload, each up to a bound. It looks at no more of the payload,
// so that a long one costs no more than a short one.
func (h hiddenNames) contentOf(payload []byte) (c content) {
	begin := payload[:min(len(payload), shown)]
	r := h.redact(begin, len(begin) < len(payload), shown)
	c.Cut = r.cut || len(begin) < len(payload)
	plain := begin
	switch {
	case r.whole != "":
		plain = []byte(r.whole)
	case r.json && (r.hidden || c.Cut):
		plain = r.compact
	}
	if r.json {
		c.JSON = texts.Clip(string(r.pretty), shown)
	}
	if text := clipped(plain, c.Cut); utf8.Valid(text) {
		c.Text = texts.Clip(string(text), shown)
	}
	c.Hex = hex.Dump(plain[:min(len(plain), shown/16)])
	return c
}

// clipped returns a text without a character that was cut in its middle.
func clipped(text []byte, cut bool) []byte {
	for range utf8.UTFMax - 1 {
		if last, size := utf8.DecodeLastRune(text); !cut || last != utf8.RuneError || size != 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text
}

// preview returns the beginning of a payload in a line, "" if it is no text.
func (h hiddenNames) preview(payload []byte, most int) string {
	text, _ := h.text(string(payload[:min(len(payload), shown)]), most)
	if !utf8.Valid(clipped([]byte(text), true)) {
		return ""
	}
	return texts.Clip(text, most)
}

// text returns a text without what is redacted in it, and whether something is. What of the result
// is beyond the bound may be missing.
func (h hiddenNames) text(text string, bound int) (shows string, hidden bool) {
	begin := text[:min(len(text), max(bound, shown/16))]
	r := h.redact([]byte(begin), len(begin) < len(text), len(begin))
	switch {
	case r.whole != "":
		return hiddenText, true
	case r.json && (r.hidden || len(begin) < len(text)):
		return string(r.compact), r.hidden
	}
	return begin, false
}

// redaction is what became of a text that may be JSON.
type redaction struct {
	json            bool   // it is JSON, or lines of JSON
	whole           string // not "": it is hidden whole, and this stands for it
	compact, pretty []byte // without the hidden values
	hidden          bool   // some are hidden
	cut             bool   // compact or pretty are only the beginning
}

// redact reads a text. cut says that there is more of it, and bound how many bytes the results may
// have about.
func (h hiddenNames) redact(text []byte, cut bool, bound int) redaction {
	c := &copier{names: h, bound: bound, cutShort: cut}
	return c.all(text)
}

// copier copies JSON without hidden values, in one line and indented. Numbers and the order of keys
// stay as they are.
type copier struct {
	names           hiddenNames
	bound           int
	cutShort        bool // the text is only the beginning of another
	compact, pretty bytes.Buffer
	hidden          bool
	muted           int // in how many hidden values it is
	texts           int // in how many texts of JSON it is
	from            *json.Decoder
}

var (
	errTooDeep = errors.New("too deep")
	errEnough  = errors.New("enough")
)

func (c *copier) all(text []byte) redaction {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(bytes.TrimSpace(text)) == 0 {
		return redaction{}
	}
	c.from = json.NewDecoder(bytes.NewReader(text))
	c.from.UseNumber()
	values := 0
	var err error
	for {
		if values > 0 {
			c.write("\n", "\n")
		}
		if err = c.value(0); err != nil {
			break
		}
		values++
	}
	structured := strings.ContainsRune(`{["`, rune(bytes.TrimSpace(text)[0]))
	atEnd := errors.Is(err, io.EOF)
	ranOut := c.cutShort && (atEnd || errors.Is(err, io.ErrUnexpectedEOF))
	if ranOut && structured {
		c.rest(text)
	}
	r := redaction{hidden: c.hidden, cut: errors.Is(err, errEnough) || ranOut || c.pretty.Len() > c.bound}
	switch {
	case errors.Is(err, errTooDeep):
		return redaction{whole: hiddenDeep, hidden: true}
	case (atEnd || errors.Is(err, errEnough) || ranOut) && (structured || values == 1 && atEnd && !c.cutShort):
		r.json = true
		r.compact, r.pretty = bytes.TrimSuffix(c.compact.Bytes(), []byte("\n")), bytes.TrimSuffix(c.pretty.Bytes(), []byte("\n"))
		return r
	case looksLikeJSON(text):
		return redaction{whole: hiddenWhole, hidden: true}
	}
	return redaction{}
}

// nameAndColon is what JSON has, and other texts hardly.
var nameAndColon = regexp.MustCompile(`["'][\pL\w$.@ -]{1,64}\\*["']\s*:`)

// beginning is how JSON begins, if it has names.
var beginning = regexp.MustCompile(`^[ \t\r\n\f\v\x1e]*(\{|\[[ \t\r\n]*[\[{"'])`)

// looksLikeJSON returns whether a text begins like JSON, or has something of it inside.
func looksLikeJSON(text []byte) bool {
	plain := bytes.ReplaceAll(bytes.TrimPrefix(bytes.TrimPrefix(text, []byte("\xff\xfe")), []byte("\xfe\xff")), []byte{0}, nil) // it may be UTF-16
	return beginning.Match(plain) || nameAndColon.Match(plain)
}

// write adds to both forms, unless it is inside of a hidden value.
func (c *copier) write(compact, pretty string) {
	if c.muted > 0 {
		return
	}
	c.compact.WriteString(compact)
	if c.pretty.Len() <= c.bound {
		c.pretty.WriteString(pretty)
	}
}

// line ends a line of the indented form.
func (c *copier) line(depth int) string { return "\n" + strings.Repeat("  ", min(depth, deepest)) }

// value copies the next value. It returns io.EOF if there is none at the outermost level.
func (c *copier) value(depth int) error {
	token, err := c.from.Token()
	switch {
	case err != nil && depth > 0:
		return inside(err)
	case err != nil:
		return err
	case depth > deepest:
		return errTooDeep
	case c.muted == 0 && c.compact.Len() > c.bound:
		return errEnough
	}
	open, isOpen := token.(json.Delim)
	if !isOpen {
		return c.scalar(token)
	}
	return c.members(open, depth)
}

// members copies an object or an array, whose beginning was read.
func (c *copier) members(open json.Delim, depth int) error {
	c.write(open.String(), open.String())
	first := true
	for ; c.from.More(); first = false {
		if !first {
			c.write(",", ",")
		}
		c.write("", c.line(depth+1))
		hide := false
		if open == '{' {
			key, err := c.from.Token()
			if err != nil {
				return inside(err)
			}
			name, _ := key.(string)
			hide = c.names.hide(name)
			name = encoded(name)
			c.write(name+":", name+": ")
		}
		if hide {
			c.hide()
			c.muted++
		}
		err := c.value(depth + 1)
		if hide {
			c.muted--
		}
		if err != nil {
			return err
		}
	}
	closing, err := c.from.Token()
	if err != nil {
		return inside(err)
	}
	end, _ := closing.(json.Delim)
	if !first {
		c.write("", c.line(depth))
	}
	c.write(end.String(), end.String())
	return nil
}

// inside returns an error of the decoder in the middle of a value.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// hide writes what stands for a hidden value.
func (c *copier) hide() {
	c.hidden = true
	text := encoded(hiddenText)
	c.write(text, text)
}

// scalar copies a value that has no others in it, except a text, which may be JSON.
func (c *copier) scalar(token any) error {
	if text, ok := token.(string); ok && c.muted == 0 {
		token = c.inner(text)
	}
	text := encoded(token)
	c.write(text, text)
	return nil
}

// inner returns a text without what is hidden in it, if it is JSON.
func (c *copier) inner(text string) string {
	trimmed := strings.TrimSpace(text)
	if trimmed == "" || !looksLikeJSON([]byte(text)) && trimmed[0] != '"' {
		return text
	}
	if c.texts >= deepestText {
		c.hidden = true
		return hiddenText
	}
	within := &copier{names: c.names, bound: len(text) + shown, texts: c.texts + 1}
	switch r := within.all([]byte(text)); {
	case r.whole != "":
		c.hidden = true
		return hiddenText
	case r.json && r.hidden:
		c.hidden = true
		return string(r.compact)
	}
	return text
}

// rest adds the beginning of a text that is cut, such as a long one in Base64.
func (c *copier) rest(text []byte) {
	left := bytes.TrimLeft(text[min(int(c.from.InputOffset()), len(text)):], " \t\r\n,:")
	if len(left) < 2 || left[0] != '"' || !c.awaitsValue() {
		return
	}
	for cut := range min(len(left)-1, 12) { // a character or an escape may be cut in its middle
		var part string
		if json.Unmarshal(append(bytes.Clone(left[:len(left)-cut]), '"'), &part) != nil {
			continue
		}
		if trimmed := strings.TrimSpace(part); !looksLikeJSON([]byte(part)) && (trimmed == "" || trimmed[0] != '"') {
			shows := encoded(strings.TrimRight(part, "\ufffd"))
			c.write(shows, shows)
		}
		return
	}
}

// awaitsValue returns whether the copy ends where a value has to come that is not hidden.
func (c *copier) awaitsValue() bool {
	said := c.compact.Bytes()
	return len(said) == 0 || said[len(said)-1] == ':' || said[len(said)-1] == '['
}

// encoded returns a value as JSON, with text as it is.
func encoded(value any) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value) // what was decoded
	return strings.TrimSuffix(b.String(), "\n")
}

// contents keeps what pages show of payloads. The payload of an ID never changes, so each is made
// ready once, however often pages are shown.
type contents struct {
	mu  sync.Mutex
	all map[string]*content
}

// mostContents is how many are kept, of at most 300 kB each.
const mostContents = 64

// of returns the content under a key, and has it made if it is not kept.
func (c *contents) of(key string, build func() content) *content {
	c.mu.Lock()
	kept := c.all[key]
	c.mu.Unlock()
	if kept != nil {
		return kept
	}
	built := build()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil || len(c.all) >= mostContents {
		c.all = map[string]*content{}
	}
	c.all[key] = &built
	return &built
}
