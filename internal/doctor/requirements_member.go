package doctor

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"
)

// memberChecks returns the checks of this member of the collective.
func memberChecks() []Check {
	return []Check{
		{"config", "Configuration", checkConfig},
		{"identity", "Certificate", checkIdentity},
		{"collective", "Collective", checkCollective},
		{"clock", "Clock", checkClock},
		{"agent", "Agent", checkAgent},
		{"waypoint-choice", "Choice of waypoints", checkChoice},
		{"measuring", "Measuring connections", checkMeasuring},
	}
}

// renewBefore is the time before its end at which a certificate should be replaced.
const renewBefore = 14 * 24 * time.Hour

func checkConfig(_ context.Context, e *Env) Result {
	switch err := e.Config.Err; {
	case errors.Is(err, fs.ErrNotExist):
		return skipped("there is no %s: this host is not a member yet", e.Config.Path)
	case errors.Is(err, fs.ErrPermission):
		return skipped("needs root to read %s", e.Config.Path)
	case err != nil:
		return failed("correct "+e.Config.Path, "%v", err)
	}
	return ok("%s is valid", e.Config.Path)
}

func checkIdentity(_ context.Context, e *Env) Result {
	if e.Config.Err != nil {
		return skipped("no usable configuration names it")
	}
	id := e.Identity
	fix := "have the collective's authority issue a new certificate (dcol ca issue)"
	if e.Config.Joined {
		fix = "start the agent, which has it renewed (" + e.startAgent() + "); if it cannot, dcol status says why"
	}
	switch {
	case errors.Is(id.Err, fs.ErrPermission):
		return skipped("needs root to read it")
	case id.Err != nil && e.Config.Joined: // only the operator can fix that, and another check explains how
		return failed("fix what the message names", "%v", id.Err)
	case id.Err != nil:
		return failed("correct what it says, or "+fix, "%v", id.Err)
	case e.Now.Before(id.NotBefore):
		return failed("set the clock right: "+fixClock, "valid only from %s, the clock says %s", day(id.NotBefore), day(e.Now))
	case e.Now.After(id.NotAfter):
		return failed(fix, "expired on %s", day(id.NotAfter))
	case e.Config.Joined && id.NotAfter.Sub(e.Now) > id.NotAfter.Sub(id.NotBefore)/2:
		return ok("valid until %s, renewed by itself", day(id.NotAfter))
	case e.Now.Add(renewBefore).After(id.NotAfter):
		return warning(fix, "expires on %s", day(id.NotAfter))
	}
	return ok("valid until %s", day(id.NotAfter))
}

// checkCollective checks what a joined host needs to remain a member.
func checkCollective(_ context.Context, e *Env) Result {
	c := e.Collective
	switch {
	case e.Config.Err != nil:
		return skipped("no usable configuration names one")
	case !e.Config.Joined:
		return info("this host has not joined one")
	case c == nil && e.AgentUnasked != nil:
		return e.untold("only the agent knows")
	case c == nil:
		return skipped("only the agent knows, and it does not run")
	case c.Expelled != "":
		return failed("ask the collective's operator", "it has expelled this host: %s", c.Expelled)
	case c.Renewal != "":
		return failed("fix what the message names before the certificate expires", "the certificate cannot be renewed: %s", c.Renewal)
	case !c.Connected:
		return warning("check that this host reaches TCP ports 45672 and 45673 of the coordinator, and that the coordinator's agent runs", "no coordinator is connected: %s", c.Why)
	case c.Unreached:
		return failed("allow incoming UDP at the session's port, or set this host's public addresses ([collective] addresses)", "other members cannot reach this waypoint")
	}
	if c.Members == 1 {
		return ok("connected to a coordinator; 1 member is known")
	}
	return ok("connected to a coordinator; %d members are known", c.Members)
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

const fixClock = "run a time service, such as chrony (with systemd: timedatectl set-ntp true)"

// checkClock checks the clock, on which the validity of certificates depends.
func checkClock(_ context.Context, e *Env) Result {
	const fix = fixClock
	if e.Now.Before(e.Built) {
		return failed(fix, "it says %s, which is before this dcol was built (%s)", day(e.Now), day(e.Built))
	}
	synchronised, err := e.System.ClockSynchronised()
	switch {
	case err != nil:
		return skipped("cannot ask the kernel: %v", err)
	case !synchronised:
		return warning(fix, "no time service sets it: certificates may seem expired or not valid yet")
	}
	return ok("set by a time service")
}

func checkAgent(_ context.Context, e *Env) Result {
	switch {
	case e.AgentRuns && len(e.AgentProblems) > 0:
		return warning("fix what the message names, then restart the agent: "+e.restartAgent(), "runs, but: %s", strings.Join(e.AgentProblems, "; "))
	case e.AgentRuns:
		return ok("runs")
	case errors.Is(e.AgentUnasked, fs.ErrPermission):
		return e.untold("whether it runs")
	case e.AgentUnasked != nil:
		return warning(e.restartAgent(), "it could not be asked: %v", e.AgentUnasked)
	}
	return info("does not run (%s)", e.startAgent())
}

// checkMeasuring checks whether the agent measures all active connections.
func checkMeasuring(_ context.Context, e *Env) Result {
	switch {
	case e.Config.Err == nil && !e.Config.Client:
		return skipped("only clients do")
	case e.AgentUnasked != nil:
		return e.untold("only the agent knows")
	case !e.AgentRuns:
		return skipped("only the agent knows, and it does not run")
	case e.Sampling != nil:
		return info("%d of %d active connections are measured now, to save processor time; the others keep their paths until their turn", e.Sampling.Measured, e.Sampling.Active)
	}
	return ok("all active connections are measured")
}

// checkChoice checks the operator's choice of waypoints (client.use, client.avoid, dcol use and dcol avoid).
func checkChoice(_ context.Context, e *Env) Result {
	switch {
	case e.Config.Err == nil && !e.Config.Client:
		return skipped("only clients have one")
	case e.AgentUnasked != nil:
		return e.untold("only the agent knows which waypoints there are")
	case !e.AgentRuns || e.Choice == nil:
		return skipped("only the agent knows which waypoints there are, and it does not run as a client")
	case len(e.Choice.Unknown) > 0:
		detail := "this host knows no waypoint " + strings.Join(e.Choice.Unknown, ", ")
		if e.Choice.Warning != "" {
			detail += "; " + e.Choice.Warning
		}
		return warning("correct client.use and client.avoid in "+e.Config.Path+" (dcol members lists the waypoints), then dcol reload", "%s", detail)
	case e.Choice.Warning != "":
		return warning("dcol use --help explains the choice; dcol status lists the waypoints, and says why some do not work", "%s", e.Choice.Warning)
	}
	return ok("this host knows all waypoints that it names")
}

// startAgent and restartAgent return the operator's commands for that on this host.
func (e *Env) startAgent() string {
	if e.systemd() {
		return "systemctl start dcol"
	}
	return "dcol agent"
}

func (e *Env) restartAgent() string {
	if e.systemd() {
		return "systemctl restart dcol"
	}
	return "kill its process, then: dcol agent"
}

// systemd reports whether systemd runs this host (sd_booted(3)).
func (e *Env) systemd() bool {
	_, err := fs.Stat(e.FS, "run/systemd/system")
	return err == nil
}
