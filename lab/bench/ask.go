package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session"
)

// Asker asks a waypoint for very many mappings, or to be admitted to in-band
// detours, over one session as an agent has it: `dcol-lab load ask`, on a member's
// host.
type Asker struct {
	Name     string         // the waypoint's
	Waypoint netip.AddrPort // where its sessions are
	Server   netip.Addr     // what the mappings lead to
	Log      *slog.Logger
}

const (
	askFormat   = "%d %d\n" // the first port and how many
	askedFormat = "granted %d refused %d seconds %f port %d\n"
	// admitOrder asks for in-band detours; the answer is a messages.TunnelGrant in
	// JSON. expectOrder does too, and has the SYN from one port to another one name a
	// server.
	admitOrder   = "admit"
	expectFormat = "expect %s %s %s\n"
	expected     = "expected\n"
	// askWorkers is the number of concurrent requests: half of a waypoint's limit per session.
	askWorkers = 256
)

// asked is the result of one line of orders.
type asked struct {
	granted, refused int64
	seconds          float64
	port             uint16 // that leads to the first of the server's ports
}

// Run obeys the lines it reads: each is the first of the server's ports to ask
// for and how many, or one of in-band detours.
func (a Asker) Run(ctx context.Context, orders io.Reader, w io.Writer) error {
	id, err := collective.Load(identity, a.Log)
	if err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	client := session.NewClient(session.ClientConfig{
		Identity: id, Name: a.Name, Addr: a.Waypoint, Log: a.Log,
		Changed: func(session.State) {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	defer client.Close()
	late := time.After(startLimit)
	for !client.State().Usable() {
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late:
			return fmt.Errorf("no session with %s: %w", a.Name, client.State().Problem)
		}
	}
	if _, err := io.WriteString(w, loadReady); err != nil {
		return err
	}
	var e expecter
	defer e.close()
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		line := lines.Text() + "\n"
		word, _, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case admitOrder:
			err = admit(ctx, client, w)
		case "expect":
			err = e.expect(ctx, client, line, w)
		default:
			err = a.obey(ctx, client, line, w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// obey requests mappings as an order describes.
func (a Asker) obey(ctx context.Context, client *session.Client, order string, w io.Writer) error {
	var first uint16
	var count int
	if _, err := fmt.Sscanf(order, askFormat, &first, &count); err != nil {
		return fmt.Errorf("order %q: %w", order, err)
	}
	got, err := a.ask(ctx, client, first, count)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, askedFormat, got.granted, got.refused, got.seconds, got.port)
	return err
}

func (a Asker) ask(ctx context.Context, client *session.Client, first uint16, count int) (asked, error) {
	var next, granted, refused atomic.Int64
	var port atomic.Uint32
	var lastErr atomic.Pointer[error]
	var workers sync.WaitGroup
	start := time.Now()
	for range askWorkers {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(count); i = next.Add(1) - 1 {
				to := netip.AddrPortFrom(a.Server, first+uint16(i))
				grant, err := client.Map(ctx, to, to.Port())
				if err != nil {
					refused.Add(1)
					lastErr.Store(&err)
					continue
				}
				granted.Add(1)
				if i == 0 {
					port.Store(uint32(grant.Port))
				}
			}
		})
	}
	workers.Wait()
	got := asked{granted.Load(), refused.Load(), time.Since(start).Seconds(), uint16(port.Load())}
	if err := lastErr.Load(); err != nil {
		return got, fmt.Errorf("%d of %d requests failed, the last with: %w", got.refused, count, *err)
	}
	return got, nil
}

// asker is an Asker that runs on a host.
type asker struct {
	*process
	orders  io.Writer
	answers *bufio.Reader
}

// startAsker starts one and waits for its session.
func (s *network) startAsker(ctx context.Context, host, waypoint string) (*asker, error) {
	p := s.prepare(ctx, host, "load", s.opts.Programs.Lab, "load", "ask", "--name", waypoint,
		"--waypoint", netip.AddrPortFrom(s.Host(waypoint).Addr4(), sessionPort).String(),
		"--at", netip.AddrPortFrom(s.Host(serverHost).Addr4(), mappingPort).String())
	orders, err := p.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.what, err)
	}
	answers, output := io.Pipe()
	p.Stdout, p.Stderr = output, s.opts.Stderr
	if err := s.launch(p); err != nil {
		return nil, err
	}
	go func() {
		<-p.ended
		output.CloseWithError(&endedError{p.what, fmt.Sprint(p.err)})
	}()
	a := &asker{process: p, orders: orders, answers: bufio.NewReader(answers)}
	if line, err := a.answers.ReadString('\n'); err != nil || line != loadReady {
		return nil, fmt.Errorf("%s is not ready: %q, %w", p.what, line, err)
	}
	return a, nil
}

// order has it do something, and returns what it answers.
func (a *asker) order(line string) (string, error) {
	if _, err := io.WriteString(a.orders, line); err != nil {
		return "", fmt.Errorf("%s: %w", a.what, err)
	}
	answer, err := a.answers.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s does not answer: %w", a.what, err)
	}
	return answer, nil
}

// ask has it ask for count mappings from a first port on.
func (a *asker) ask(first, count int) (got asked, err error) {
	line, err := a.order(fmt.Sprintf(askFormat, first, count))
	if err != nil {
		return got, err
	}
	if _, err := fmt.Sscanf(line, askedFormat, &got.granted, &got.refused, &got.seconds, &got.port); err != nil {
		return got, fmt.Errorf("%s said %s: %w", a.what, strconv.Quote(line), err)
	}
	if int(got.granted) != count {
		return got, fmt.Errorf("%s: %d of %d mappings were granted", a.what, got.granted, count)
	}
	return got, nil
}

// askAll has several askers request count mappings each, at the same time. It returns the time until all were
// granted.
func askAll(askers []*asker, first, count int) (seconds float64, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, a := range askers {
		all.Go(func() {
			got, askErr := a.ask(first, count)
			mu.Lock()
			defer mu.Unlock()
			seconds, err = max(seconds, got.seconds), errors.Join(err, askErr)
		})
	}
	all.Wait()
	return seconds, err
}
