package main

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A password with unencoded special characters must not appear in an error.
func TestErrorsDoNotShowUnencodedPasswords(t *testing.T) {
	t.Parallel()
	for _, special := range []string{"/", "?", "#"} {
		text := "redis://user:12" + special + "hunter2@localhost:6379"
		_, err := reading(t, []string{"REDISDELAY_REDIS=" + text}).redis.options()
		require.ErrorIs(t, err, errRefused, text)
		require.ErrorContains(t, err, "percent-encoded")
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, err := reading(t, []string{"REDISDELAY_REDIS=redis://localhost/0#1"}).redis.options()
	require.ErrorIs(t, err, errRefused)
}

// told returns settings from the environment.
func told(t *testing.T, name, text string) *relaySettings {
	a, err := parsed([]string{variable(name) + "=" + text})
	if err != nil {
		t.Errorf("%q cannot be read: %v", text, err)
	}
	return a.relaying
}

// urlSettings has a function per setting that reads a URL. It returns the credentials and the
// address.
var urlSettings = map[string]func(r *relaySettings) (user credentials, where string, err error){
	"redis": func(r *relaySettings) (credentials, string, error) {
		o, err := r.redis.options()
		if err != nil {
			return credentials{}, "", err
		}
		return credentials{o.Username, o.Password}, strings.Join(o.Addrs, ","), nil
	},
	"nats": func(r *relaySettings) (credentials, string, error) {
		user, _, where, err := r.kinds["nats"].(*natsKind).servers()
		return user, where, err
	},
	"amqp": func(r *relaySettings) (credentials, string, error) {
		u, user, err := readURL(r.kinds["amqp"].(*amqpKind).settings, "amqp", *r.kinds["amqp"].(*amqpKind).url, "amqp", "amqps")
		if err != nil {
			return user, "", err
		}
		return user, u.String(), nil
	},
	"http": func(r *relaySettings) (credentials, string, error) {
		u, user, err := readURL(r.kinds["http"].(*httpKind).settings, "http", *r.kinds["http"].(*httpKind).url, "http", "https")
		if err != nil {
			return user, "", err
		}
		return user, u.String(), nil
	},
}

// Any text is either read as a URL, or refused with the setting's name. A secret in it is only in
// the credentials.
func FuzzURLs(f *testing.F) {
	for _, text := range []string{
		"", "localhost:6379", "redis://user:hunter2hunter2@localhost:6379/3", "nats://hunter2hunter2@localhost", "amqps://a:b@[::1]:5671/%2f",
		"redis://user:12/hunter2hunter2@localhost", "redis://user:12#hunter2hunter2@localhost", "redis://@", "redis://:@:", "://", "%zz", "redis://%zz@a",
		"redis://a@b@c:1/2@3", "nats://a,nats://b:hunter2hunter2@c", "amqp://a:b@c/d?e=f", "rediss://[::1", "redis://a:99999999/99999999999999999999",
		"redis://a/-1", "redis:////", "redis://a b", "redis://\x00", "tls://é:ü@ö",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, server := range urlSettings {
			_, where, err := server(told(t, name, text))
			if err != nil {
				if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "--"+name) || len(err.Error()) > 1000 {
					t.Errorf("%q is refused by %q", text, err)
				}
				where = err.Error()
			}
			// The text between the last // and the last @ may be a secret.
			before, _, found := cutLast(text, "@")
			if _, secret, ok := cutLast(before, "//"); found && ok && len(secret) > 8 && strings.Contains(where, secret) {
				t.Errorf("%q is read as %q", text, where)
			}
		}
	})
}

func cutLast(text, sep string) (before, after string, found bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// The credentials and the address of a correctly built URL are read back unchanged.
func FuzzURLsAsTheyShouldBe(f *testing.F) {
	f.Add("user", "hunter2", "localhost", uint16(6379))
	f.Add("", "a/b?c#d@e:f%20", "::1", uint16(0))
	f.Add("a:b", ",", "10.0.0.1", uint16(1))
	f.Fuzz(func(t *testing.T, user, password, host string, port uint16) {
		if net.ParseIP(host) == nil && strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" || host == "" || strings.Contains(password+user, "\x00") {
			return // no host, or no value of a variable
		}
		for name, server := range urlSettings {
			u := url.URL{Scheme: name, User: url.UserPassword(user, password), Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
			text := strings.ReplaceAll(u.String(), ",", "%2C") // which divides the URLs of a list
			found, where, err := server(told(t, name, text))
			if err != nil {
				t.Fatalf("%s: %v", u.String(), err)
			}
			if found != (credentials{user, password}) || !strings.HasSuffix(where, u.Host) {
				t.Errorf("%s is read as %q at %s", u.String(), found, where)
			}
		}
	})
}
