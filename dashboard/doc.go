// Package dashboard is a web page for operators. It shows what waits in Redis, what is wrong with
// it, and mends it. New returns a handler that a program mounts:
//
//	page, err := dashboard.New(dashboard.Config{Admin: operator, Prefix: "/redisdelay"})
//	...
//	mux.Handle("/redisdelay/", page)
//	defer page.Close()
//
// The zero Config is safe. Only this machine sees the page, nobody can change anything, and
// metadata and payloads are hidden. Config.Authenticate says who else may see or do what.
//
// The page is live. A browser gets its news by server-sent events. However many browsers look, what
// they show is read from Redis once. Topics that nobody looks at are read more seldom, so that a
// page that is open all day costs Redis about a thousandth of its time. Opening the list of topics
// has all of them read, soon. Done again and again, that costs a hundredth at most. The history in
// charts is kept in this process, and begins with New.
//
// The page needs no internet, since all assets are in the program. They are htmx, its extensions
// for server-sent events and for morphing (idiomorph), and uPlot. The licence of each is beside it.
package dashboard
