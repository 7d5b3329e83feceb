package dashboard

import (
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/redisdelay/watermill-redisdelay/internal/texts"
)

// hiddenText stands for a value that is redacted.
const hiddenText = "[hidden]"

// hiddenNames are the names whose values are never shown, each as its letters and digits.
type hiddenNames []string

func hiddenNamesOf(names []string) (all hiddenNames) {
	for _, name := range names {
		all = append(all, strings.Join(wordsOf(name), ""))
	}
	return all
}

// spoken is how many letters make a hidden name long enough to be found at the beginning or the end
// of other words, such as "password" in "dbpassword".
const spoken = 5

// hide returns whether the values of a key are never shown. One of the names is a run of whole
// words of the key, also in the plural, or begins or ends one if it is long.
func (h hiddenNames) hide(key string) bool {
	words := wordsOf(key)
	joined := strings.Join(words, "")
	begins := map[int]bool{}
	at := 0
	for _, word := range words {
		begins[at] = true
		at += len(word)
	}
	begins[at] = true // the end of the last
	for _, name := range h {
		for from := 0; ; {
			i := strings.Index(joined[from:], name)
			if i < 0 {
				break
			}
			i += from
			end := i + len(name)
			whole := begins[i] && (begins[end] || strings.HasPrefix(joined[end:], "s") && begins[end+1])
			if whole || len(name) >= spoken && (begins[i] || begins[end]) {
				return true
			}
			from = i + 1
		}
	}
	return false
}

// wordsOf returns the words of a name in lower case: "XAuthToken", "x-auth-token" and
// "X_AUTH_TOKEN" have the same.
func wordsOf(name string) (words []string) {
	runes := []rune(name)
	var word []rune
	end := func() {
		if len(word) > 0 {
			words = append(words, string(word))
			word = nil
		}
	}
	for i, r := range runes {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			end()
			continue
		}
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			end()
		}
		if i > 0 && unicode.IsDigit(r) != unicode.IsDigit(runes[i-1]) {
			end()
		}
		word = append(word, unicode.ToLower(unicode.ToUpper(r)))
	}
	end()
	return words
}

// pair is a key of metadata and its value.
type pair struct {
	Key, Value string
	Hidden     bool
}

// metadata returns the metadata of a message in order of its keys, without what is redacted. Values
// are cut.
func (d *Dashboard) metadata(of map[string]string, most int) (pairs []pair) {
	for _, key := range slices.Sorted(maps.Keys(of)) {
		p := pair{Key: texts.Clip(key, most), Value: hiddenText, Hidden: true}
		if !d.names.hide(key) {
			value, hidden := d.names.text(of[key], most)
			p.Value, p.Hidden = texts.Clip(value, most), hidden && value == hiddenText
		}
		pairs = append(pairs, p)
	}
	return pairs
}
