package dashboard

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
)

// challenge is an error of Authenticate that has the browser ask for a name and a password.
type challenge struct{ scheme string }

func (c *challenge) Error() string { return "the name or the password is wrong" }

// Login is a user with a password, for BasicAuth.
type Login struct {
	Password string
	User     User // Name is the name of the login, and need not be set
}

// BasicAuth returns a Config.Authenticate that asks for one of some names and passwords. A login
// with an empty password is refused. Use it over TLS only, or on this machine.
func BasicAuth(logins map[string]Login) func(*http.Request) (User, error) {
	return func(r *http.Request) (User, error) {
		name, password, ok := r.BasicAuth()
		login, known := logins[name]
		given, wanted := sha256.Sum256([]byte(password)), sha256.Sum256([]byte(login.Password))
		same := subtle.ConstantTimeCompare(given[:], wanted[:]) == 1
		if !ok || !known || !same || login.Password == "" {
			return User{}, &challenge{`Basic realm="redisdelay", charset="UTF-8"`}
		}
		login.User.Name = name
		return login.User, nil
	}
}

// TrustedProxy returns a Config.Authenticate that takes the name of the user from a header, such as
// "X-Forwarded-User". It believes only requests that come from one of Config.Proxies. The function
// of says what a user may do.
func TrustedProxy(header string, of func(name string) User) func(*http.Request) (User, error) {
	return func(r *http.Request) (User, error) {
		names := r.Header.Values(header)
		switch {
		case !FromTrustedProxy(r):
			return User{}, errors.New("the request does not come from a trusted proxy")
		case len(names) != 1 || names[0] == "":
			return User{}, errors.New("the proxy does not say who the user is")
		}
		user := of(names[0])
		user.Name = names[0]
		return user, nil
	}
}
