package dashboard_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/dashboard"
)

func TestNamesAreHiddenByTheirWords(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"password", "Password", "PASSWORD", "userPassword", "user_password", "db.password", "dbpassword", "passwordHash", "pass word", "passwords",
		"Passwd", "pwd", "client_secret", "clientSecret", "ClientSecrets", "accessToken", "access-token", "refreshtoken", "X-Auth-Token", "OAuthToken", "tokens", "idToken2",
		"api_key", "apiKey", "APIKey", "apikey", "X-API-KEY", "apiKeys", "aws_access_key_id", "privateKey", "private-key", "Authorization", "proxy-authorization", "auth",
		"Cookie", "Set-Cookie", "sessionId", "session_id", "credentials", "userCredentials", "jwt", "JWTs", "otp", "creditCard", "card_number", "cvv", "IBAN", "ssn",
		"p\u0061ssword", "pass\u200bword", "to\u212aen"} {
		require.True(t, dashboard.Hides(name, dashboard.DefaultRedact...), name)
	}
	for _, name := range []string{"", "order", "author", "authority_level", "keys", "key", "keyboard", "monkey", "spinner", "pinned", "compass", "passenger", "carbon", "classname",
		"lesson", "id", "kind", "delay", "delay_id", "partition_key", "primary_key", "businessName", "assnumber"} {
		require.False(t, dashboard.Hides(name, dashboard.DefaultRedact...), name)
	}
	require.True(t, dashboard.Hides("eMail", "e-mail"))
	require.True(t, dashboard.Hides("customer_email", "Email"))
	require.False(t, dashboard.Hides("password", "email"))
	require.False(t, dashboard.Hides("password"))
	_, err := dashboard.New(dashboard.Config{Redact: []string{"a", "-"}})
	require.ErrorContains(t, err, "Redact has")
}

// quoted returns a text as JSON.
func quoted(text string) string {
	all, _ := json.Marshal(text)
	return string(all)
}

func TestSecretsAreHiddenWhereverJSONIs(t *testing.T) {
	t.Parallel()
	const secret = `{"user":"ann","password":"geheim"}`
	long := strings.Repeat("x", 70_000)
	for name, payload := range map[string]string{
		"plain":                     secret,
		"camel case":                `{"accessToken":"geheim"}`,
		"snake case":                `{"client_secret":"geheim"}`,
		"escaped name":              `{"p\u0061ssword":"geheim"}`,
		"an object":                 `{"credentials":{"a":["geheim"]}}`,
		"a text of JSON":            `{"body":` + quoted(secret) + `}`,
		"a text in a text":          `{"body":` + quoted(`{"inner":`+quoted(secret)+`}`) + `}`,
		"a text that is all":        quoted(secret),
		"a text of a text":          quoted(quoted(secret)),
		"an array of texts":         `[` + quoted(secret) + `]`,
		"lines in a text":           `{"log":` + quoted(`{"a":1}`+"\n"+secret) + `}`,
		"broken JSON in a text":     `{"body":` + quoted(`{"password":"geheim"`) + `}`,
		"JSON behind words":         `{"log":` + quoted(`sent {"password":"geheim"}`) + `}`,
		"lines":                     `{"a":1}` + "\n" + secret + "\n",
		"lines without line breaks": `{"a":1}` + secret,
		"a broken line":             `{"a":1}` + "\n" + `{"password":"geheim"`,
		"not closed":                `{"password":"geheim"`,
		"a comma too many":          `{"password":"geheim",}`,
		"a comment":                 `{"password":"geheim"} // mine`,
		"single quotes":             `{'password': 'geheim'}`,
		"no quotes":                 `{password: "geheim"}`,
		"behind words":              `received {"password": "geheim"}`,
		"events":                    "event: a\ndata: " + secret + "\n\n",
		"a sequence":                "\x1e" + secret + "\n",
		"in an array":               `[{"password":"geheim"`,
		"UTF-16":                    strings.Join(strings.Split("\x00"+secret, ""), "\x00"),
		"UTF-16 with a mark":        "\xff\xfe" + strings.Join(strings.Split(secret+"\x00", ""), "\x00"),
		"long":                      `{"password":"geheim","rest":"` + long + `"}`,
		"long and hidden":           `{"password":"geheim` + long + `"}`,
		"a long text of JSON":       `{"body":` + quoted(`{"password":"geheim","rest":"`+long+`"}`) + `}`,
		"too deep texts":            deepText(12, secret),
	} {
		shows := dashboard.Shows(payload, dashboard.DefaultRedact...)
		require.NotContains(t, shows, "geheim", name)
		require.NotContains(t, dashboard.Searched(payload, dashboard.DefaultRedact...), "geheim", name)
		require.NotContains(t, dashboard.Searched(payload, dashboard.DefaultRedact...), "[hidden]", name)
		require.NotContains(t, shows, "67 65 68", "%s: in hex", name)
		require.NotContains(t, shows, "67 00 65 00 68", "%s: in hex", name)
	}
}

func deepText(depth int, text string) string {
	for range depth {
		text = `[` + quoted(text) + `]`
	}
	return text
}

// A payload without secrets is shown as it is.
func TestOtherPayloadsAreShownAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"a": 1.0, "b": [true, null, "x"]}`, "plain words", `he said "hello"`, `"quoted" and more`, "1 2 3", "12", `["a","b"]`, "[INFO] started", "[2026-11-26] done",
		"key=value", "a: b", `{"body":"plain"}`, `{"body":"{\"a\":1}"}`, `{"big":12345678901234567890.10}`, "{\"a\":1}\n{\"a\":2}\n", "<html>"} {
		_, shows, cut := dashboard.Forms(text, dashboard.DefaultRedact...)
		require.Equal(t, text, shows)
		require.Equal(t, text, dashboard.Searched(text, dashboard.DefaultRedact...))
		require.False(t, cut)
	}
	asJSON, text, _ := dashboard.Forms(`{"a":[1,{"token":2}],"e":{},"f":[]}`, "token")
	require.Equal(t, "{\n  \"a\": [\n    1,\n    {\n      \"token\": \"[hidden]\"\n    }\n  ],\n  \"e\": {},\n  \"f\": []\n}", asJSON)
	require.Equal(t, `{"a":[1,{"token":"[hidden]"}],"e":{},"f":[]}`, text)
	asJSON, _, _ = dashboard.Forms("{\"a\":1}\n{\"token\":2}", "token")
	require.Equal(t, "{\n  \"a\": 1\n}\n{\n  \"token\": \"[hidden]\"\n}", asJSON)

	// A long text in JSON is shown to the bound.
	_, text, cut := dashboard.Forms(`{"a":1,"data":"` + strings.Repeat("Zä", 100_000) + `"}`)
	require.True(t, cut)
	require.Contains(t, text, `{"a":1,"data":"ZäZäZä`)
	require.Greater(t, len(text), 60_000)
}

// Values of metadata may be JSON, too.
func TestMetadataIsRedacted(t *testing.T) {
	t.Parallel()
	s := newSite(t, operator)
	id := s.publish("orders", time.Hour, map[string]string{"accessToken": "geheim", "headers": `{"Authorization":"geheim","a":"seen"}`, "odd": `{"password":"geheim"`, "plain": "seen too"}, "x")
	for _, address := range []string{"/message?t=orders&id=" + id, "/messages?t=orders"} {
		_, body := s.get(address)
		require.NotContains(t, body, "geheim", address)
		require.Contains(t, body, "accessToken")
	}
	_, body := s.get("/message?t=orders&id=" + id)
	require.Contains(t, body, "seen&#34;}")
	require.Contains(t, body, "seen too")
}

// A payload costs no more than its beginning, however long it is.
func TestOnlyTheBeginningOfAPayloadIsRead(t *testing.T) { // not in parallel, because it counts
	cost := func(payload string) float64 {
		return testing.AllocsPerRun(1, func() { dashboard.Shows(payload, dashboard.DefaultRedact...) })
	}
	for name, one := range map[string]string{"objects": `{"a":[1,2,3],"token":"x","b":"text"},`, "deep": strings.Repeat("[", 150) + strings.Repeat("]", 150) + ",",
		"texts": quoted(`{"a":1}`) + ",", "hidden": `{"a":[1,2,3],"b":"text"},`} {
		short, long := "["+strings.Repeat(one, (64<<10)/len(one)+1)+"1]", "["+strings.Repeat(one, (512<<10)/len(one))+"1]"
		if name == "hidden" { // nothing of it comes to the bound of what is shown
			short, long = `{"token":`+short+`}`, `{"token":`+long+`}`
		}
		require.InDelta(t, cost(short), cost(long), cost(short)/10, name)
	}
}
