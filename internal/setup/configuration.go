package setup

import (
	"bytes"
	"fmt"
	"strconv"
	"text/template"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/tomlfile"
)

// configuration holds the settings to write. All others have their defaults.
type configuration struct {
	By, Collective, Name string
	Roles, Coordinators  []string
	State                string // empty: the default
	Files                collective.Files
	Founded              bool
	Directory            string // the coordinator's
	Addresses            []string
	Date                 string
}

var form = template.Must(template.New("").Funcs(template.FuncMap{"quote": quote, "list": tomlfile.List}).Parse(
	`# This host is a member of the collective {{.Collective}}, by dcol {{.By}} on {{.Date}}.
# "dcol agent --sample" prints every key there is, with its default. The agent reads
# this file when it starts.

name  = {{quote .Name}}
roles = {{list .Roles}}
{{- if .State}}
state_dir = {{quote .State}}
{{- end}}

[identity]   # the agent renews the certificate
certificate = {{quote .Files.Certificate}}
key         = {{quote .Files.Key}}
ca          = {{quote .Files.CA}}
crl         = {{quote .Files.CRL}}

[collective]
coordinators = {{list .Coordinators}}
{{- if .Founded}}

[coordinator]
dir       = {{quote .Directory}}
addresses = {{list .Addresses}}   # where members reach this host
{{- end}}
`))

func quote(s string) string { return strconv.Quote(s) }

// writeConfiguration is the last step: only the configuration makes the host a member.
func (h Host) writeConfiguration(c configuration) error {
	c.Files, c.Date = h.identity(), time.Now().Format(time.DateOnly)
	if h.State != DefaultState {
		c.State = h.State
	}
	var text bytes.Buffer
	if err := form.Execute(&text, c); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if _, err := config.Parse(h.Config, text.Bytes()); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if err := durable.Replace(h.Config, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}
