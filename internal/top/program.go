package top

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"github.com/gdamore/tcell/v3"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/api"
)

// Agent answers requests, as *api.Client does.
type Agent interface {
	Status(context.Context) (api.Status, error)
	Why(context.Context, api.WhyRequest) (api.Why, error)
	Steer(context.Context, api.SteerRequest) (api.Steering, error)
}

const (
	// often is the shortest time between two requests to the agent, and the time between two updates of the clock.
	often = time.Second
	// seldom is the longest time between two requests.
	seldom = 10 * time.Second
	// share is the part of one processor that this program may use. Its questions cost the agent about as much. If there
	// are very many connections, it asks less often.
	share = 0.003
	// stopping bounds the wait until the kernel has stopped this program.
	stopping = 2 * time.Second
	// patience bounds the wait for an answer.
	patience = 10 * time.Second
)

// every returns the time between two requests to the agent, if each costs the given processor time.
func every(cost time.Duration) time.Duration {
	wait := time.Duration(float64(cost) / share)
	// Whole seconds, so that the clock and the ages change together with the rates.
	wait = (wait + often - 1).Truncate(often)
	return min(max(wait, often), seldom)
}

// Run shows the agent's state on this process's terminal until the user quits or ctx ends. It begins with the state first.
// If the agent does not answer later, Run says so on the screen and keeps asking.
func Run(ctx context.Context, agent Agent, first api.Status) error {
	// With 1,000 connections each state takes megabytes of short-lived memory. Collecting it at the usual rate would
	// take a fifth of this program's time.
	debug.SetGCPercent(400)
	terminal, err := openTerminal()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := program{
		agent: agent, terminal: terminal, styles: styles(terminal.Colors()), look: Look{ASCII: terminal.CharacterSet() != "UTF-8"},
		messages: make(chan Message), every: often,
	}
	defer func() { p.terminal.Fini() }() // Ctrl-Z may have replaced the terminal; a second Fini does nothing
	p.model.Handle(Answered{first, often}, time.Now())
	return p.loop(ctx)
}

// program is one run: the model, the terminal and the agent.
type program struct {
	agent    Agent
	terminal tcell.Screen
	styles   []tcell.Style
	look     Look
	model    Model
	size     [2]int       // columns and rows of the last picture
	messages chan Message // from goroutines that wait for the agent
	every    time.Duration
	asked    time.Time     // when the state was requested last
	open     bool          // the request has not been answered yet
	spent    time.Duration // processor time used until the last state arrived
	cost     time.Duration // processor time from one state to the next, smoothed
}

// loop owns the model. It draws after each message, and once a second while no answer comes.
func (p *program) loop(ctx context.Context) error {
	clock := time.NewTicker(often)
	defer clock.Stop()
	p.asked, p.spent = time.Now(), processorTime()
	p.paint()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-p.terminal.EventQ():
			if done, err := p.events(ctx, e, ok); done {
				return err
			}
		case msg := <-p.messages:
			p.arrived(msg)
		case now := <-clock.C:
			// Half the interval is enough, because ticks never come exactly on time.
			if !p.open && now.Sub(p.asked) > p.every-often/2 {
				p.ask(ctx, now)
				continue
			}
			if !p.open && p.every > often {
				continue // nothing has changed but the clock
			}
		}
		p.paint()
	}
}

func (p *program) paint() {
	columns, rows := p.terminal.Size()
	if before := p.size; before != [2]int{} && before != [2]int{columns, rows} {
		p.terminal.Sync() // otherwise cells outside the new size may stay
	}
	p.size = [2]int{columns, rows}
	paint(p.terminal, View(&p.model, time.Now(), columns, rows, p.look), p.styles)
}

// ask requests the agent's state.
func (p *program) ask(ctx context.Context, now time.Time) {
	p.asked, p.open = now, true
	p.await(ctx, func(ctx context.Context) Message {
		s, err := p.agent.Status(ctx)
		if err != nil {
			return Failed{err}
		}
		return Answered{Status: s}
	})
}

// await waits for the agent's answer in a goroutine.
func (p *program) await(ctx context.Context, question func(context.Context) Message) {
	go func() {
		limited, cancel := context.WithTimeout(ctx, patience)
		msg := question(limited)
		cancel()
		select {
		case p.messages <- msg:
		case <-ctx.Done():
		}
	}()
}

// arrived hands a message to the model. It also measures the processor time that this program used between two states.
func (p *program) arrived(msg Message) {
	switch a := msg.(type) {
	case Answered:
		p.open = false
		used := processorTime()
		cost := used - p.spent
		p.spent = used
		// A smoothed value, so that one costly moment changes little.
		p.cost += (cost - p.cost) / 8
		p.every = every(p.cost)
		a.Every = p.every
		msg = a
	case Failed:
		p.open = false
	}
	p.model.Handle(msg, time.Now())
}

// events handles an event of the terminal and those already waiting behind it, and reports whether the program ends.
// The caller draws once for all of them: over a slow line, one picture for each key would arrive long after the last
// key.
func (p *program) events(ctx context.Context, e tcell.Event, ok bool) (done bool, err error) {
	for {
		if !ok {
			return true, nil
		}
		if done, err := p.event(ctx, e); done {
			return true, err
		}
		select {
		case e, ok = <-p.terminal.EventQ():
		default:
			return false, nil
		}
	}
}

// event handles an event of the terminal, and reports whether the program ends.
func (p *program) event(ctx context.Context, e tcell.Event) (done bool, err error) {
	switch e := e.(type) {
	case *tcell.EventError:
		return true, fmt.Errorf("read from the terminal: %w", e)
	case *tcell.EventKey:
		switch k := keyOfEvent(e); k {
		case "":
		case "ctrl-l":
			p.terminal.Sync()
		case "ctrl-z":
			return p.suspend()
		default:
			for _, r := range p.model.Handle(k, time.Now()) {
				if _, quit := r.(Quit); quit {
					return true, nil
				}
				p.carryOut(ctx, r)
			}
		}
	}
	return false, nil
}

func (p *program) carryOut(ctx context.Context, r Request) {
	switch r := r.(type) {
	case AskWhy:
		p.await(ctx, func(ctx context.Context) Message {
			why, err := p.agent.Why(ctx, api.WhyRequest{Server: r.Server})
			return Explained{r.Server, why, err}
		})
	case AskSteer:
		p.await(ctx, func(ctx context.Context) Message {
			now, err := p.agent.Steer(ctx, r.Request)
			return Steered{now, err}
		})
	}
}

// suspend gives the terminal back to the shell until the user continues the program.
func (p *program) suspend() (done bool, err error) {
	// The library's Suspend leaves a reader behind that races with Resume.
	p.terminal.Fini()
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	if err := unix.Kill(0, unix.SIGTSTP); err != nil {
		return true, fmt.Errorf("stop this program: %w", err)
	}
	// The program stops a moment after the call. The terminal must not be opened before that. If no shell could
	// continue the program, the kernel does not stop it at all.
	select {
	case <-continued:
	case <-time.After(stopping):
	}
	again, err := openTerminal()
	if err != nil {
		return true, err
	}
	p.terminal, p.size = again, [2]int{}
	return false, nil
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
