package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// mount adds the page to a program that has a session for each of its users.
func mount(mux *http.ServeMux, client redis.UniversalClient, session func(*http.Request) (name string, admin bool)) (*dashboard.Dashboard, error) {
	operator, err := admin.New(admin.Config{Client: client})
	if err != nil {
		return nil, err
	}
	page, err := dashboard.New(dashboard.Config{
		Admin:  operator,
		Prefix: "/redisdelay",
		Hosts:  []string{"ops.example.com"},
		Authenticate: func(r *http.Request) (dashboard.User, error) {
			name, isAdmin := session(r)
			switch {
			case name == "":
				return dashboard.User{}, errors.New("no session")
			case isAdmin:
				return dashboard.User{Name: name, Role: dashboard.Operator, Contents: true}, nil
			default:
				return dashboard.User{Name: name, Role: dashboard.Viewer}, nil
			}
		},
	})
	if err != nil {
		return nil, err
	}
	mux.Handle("/redisdelay/", page)
	return page, nil // close it when the program ends
}

func ExampleNew() {
	server, err := redisdelaytest.New(redisdelaytest.Config{})
	if err != nil {
		panic(err)
	}
	defer server.Close()
	mux := http.NewServeMux()
	page, err := mount(mux, server.Client(), func(*http.Request) (string, bool) { return "ann", false })
	if err != nil {
		panic(err)
	}
	defer page.Close()

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "https://ops.example.com/redisdelay/", nil))
	fmt.Println(answer.Code)

	// Output: 200
}
