package faulttest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// proxied is a connection through a Proxy.
type proxied struct {
	proxy   *Proxy
	in, out net.Conn
	fates   chan bool // of the expected replies, in order; true means dropped
	once    sync.Once
	ended   chan struct{}
}

func (c *proxied) cut() {
	c.once.Do(func() {
		close(c.ended)
		_ = c.in.Close()
		_ = c.out.Close()
	})
}

// parcel is a call or a reply in transit.
type parcel struct {
	raw     []byte
	arrived time.Time
	lost    bool
}

func (c *proxied) run() {
	var wg sync.WaitGroup
	calls, replies := make(chan parcel, 1<<12), make(chan parcel, 1<<12)
	for _, part := range []func(){
		func() { defer close(calls); c.ask(calls) },
		func() { c.deliver(calls, c.out) },
		func() { defer close(replies); c.answer(replies) },
		func() { c.deliver(replies, c.in) },
	} {
		wg.Go(part)
	}
	wg.Wait()
}

// deliver writes parcels after the delay of the network, and finally cuts the connection.
func (c *proxied) deliver(parcels <-chan parcel, to net.Conn) {
	defer func() {
		c.cut()
		for range parcels { // until the senders have noticed
		}
	}()
	for p := range parcels {
		if !c.pass(p.arrived) {
			return
		}
		if p.lost {
			if c.proxy.losesSilently() {
				<-c.ended
			}
			return
		}
		if _, err := to.Write(p.raw); err != nil {
			return
		}
	}
}

// ask reads the calls of the client.
func (c *proxied) ask(calls chan<- parcel) {
	from := bufio.NewReaderSize(c.in, 1<<16)
	for {
		var raw []byte
		call, err := readCall(from, &raw)
		if err != nil {
			return
		}
		if !answeredByPushes(call[0]) {
			select {
			case c.fates <- c.proxy.swallowsReplyTo(call):
			case <-c.ended:
				return
			}
		}
		calls <- parcel{raw: raw, arrived: time.Now()}
	}
}

// answeredByPushes returns whether a RESP3 server answers the command out of band.
func answeredByPushes(command string) bool {
	switch strings.ToLower(command) {
	case "subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe":
		return true
	}
	return false
}

// answer reads the replies of the server.
func (c *proxied) answer(replies chan<- parcel) {
	from := bufio.NewReaderSize(c.out, 1<<16)
	for {
		p := parcel{}
		push, err := readReply(from, &p.raw)
		if err != nil {
			return
		}
		if !push {
			p.lost = <-c.fates
		}
		p.arrived = time.Now()
		replies <- p
	}
}

// readCall reads an array of bulk strings, and adds the bytes to raw.
func readCall(from *bufio.Reader, raw *[]byte) ([]string, error) {
	n, err := readHeader(from, raw, '*')
	if err != nil {
		return nil, err
	}
	call := make([]string, 0, n)
	for range n {
		size, err := readHeader(from, raw, '$')
		if err != nil {
			return nil, err
		}
		at := len(*raw)
		if err := readBytes(from, raw, size+2); err != nil {
			return nil, err
		}
		if size > 100 {
			call = append(call, "") // a body, or a script
		} else {
			call = append(call, string((*raw)[at:at+size]))
		}
	}
	if len(call) == 0 {
		return nil, fmt.Errorf("an empty call")
	}
	return call, nil
}

func readHeader(from *bufio.Reader, raw *[]byte, kind byte) (int, error) {
	line, err := readLine(from, raw)
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("%q is not RESP: want %q first", line, kind)
	}
	return strconv.Atoi(line[1:])
}

func readLine(from *bufio.Reader, raw *[]byte) (string, error) {
	line, err := from.ReadBytes('\n')
	*raw = append(*raw, line...)
	if err != nil {
		return "", err
	}
	if len(line) < 3 {
		return "", fmt.Errorf("%q is not RESP", line)
	}
	return string(line[:len(line)-2]), nil
}

func readBytes(from *bufio.Reader, raw *[]byte, n int) error {
	at := len(*raw)
	*raw = append(*raw, make([]byte, n)...)
	_, err := io.ReadFull(from, (*raw)[at:])
	return err
}

// readReply reads a whole reply, and adds the bytes to raw. push is true if it is not the answer to
// a call.
func readReply(from *bufio.Reader, raw *[]byte) (push bool, err error) {
	line, err := readLine(from, raw)
	if err != nil {
		return false, err
	}
	parts := 0
	switch kind := line[0]; kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return false, nil
	case '$', '=', '!':
		size, err := strconv.Atoi(line[1:])
		if err != nil || size < 0 {
			return false, err
		}
		return false, readBytes(from, raw, size+2)
	case '*', '~', '>', '%', '|':
		if parts, err = strconv.Atoi(line[1:]); err != nil {
			return false, err
		}
		if kind == '%' || kind == '|' {
			parts *= 2
		}
		push = kind == '>'
	default:
		return false, fmt.Errorf("%q is not RESP", line)
	}
	for range parts { // -1: null
		if _, err := readReply(from, raw); err != nil {
			return push, err
		}
	}
	if line[0] == '|' { // attributes come before their reply
		return readReply(from, raw)
	}
	return push, nil
}
