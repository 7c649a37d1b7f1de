package portmap

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// description returns the description of a device with a service of each kind, and control URLs c1, c2 and so on.
func description(base string, kinds ...string) string {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="ISO-8859-1"?><root xmlns="urn:schemas-upnp-org:device-1-0">`)
	b.WriteString(base + `<device><deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType>
<serviceList><service><serviceType>urn:schemas-upnp-org:service:Layer3Forwarding:1</serviceType><controlURL>/l3</controlURL></service></serviceList>
<deviceList><device><deviceList><device><serviceList>`)
	for i, k := range kinds {
		fmt.Fprintf(&b, "<service><serviceType>%s</serviceType><serviceId>x</serviceId>\n<controlURL> /c%d </controlURL></service>", k, i+1)
	}
	b.WriteString(`</serviceList></device></deviceList></device></deviceList></device></root>`)
	return b.String()
}

func TestParseDescription(t *testing.T) {
	at, err := url.Parse("http://192.168.1.1:5000/root.xml")
	if err != nil {
		t.Fatal(err)
	}
	gateway := netip.MustParseAddr("192.168.1.1")
	many := make([]string, 100)
	for i := range many {
		many[i] = services[0]
	}
	for _, c := range []struct {
		name, document string
		want           string // control URLs, or a part of the error
	}{
		{"all kinds", description("", services[2], services[0], services[1]), "http://192.168.1.1:5000/c2 http://192.168.1.1:5000/c3 http://192.168.1.1:5000/c1"},
		{"a base", description("<URLBase>http://192.168.1.1:80</URLBase>", services[1]), "http://192.168.1.1:80/c1"},
		{"a base elsewhere", description("<URLBase>http://192.0.2.1:80</URLBase>", services[1]), "is not one of the router"},
		{"a base of another kind", description("<URLBase>ftp://192.168.1.1/</URLBase>", services[1]), "is not one of the router"},
		{"a control elsewhere", strings.Replace(description("", services[1]), "/c1", "http://localhost/c1", 1), "is not one of the router"},
		{"with a password", strings.Replace(description("", services[1]), "/c1", "http://a:b@192.168.1.1/c1", 1), "is not one of the router"},
		{"no service", description(""), "opens no ports"},
		{"too many", description("", many...), strings.Join([]string{
			"http://192.168.1.1:5000/c1", "http://192.168.1.1:5000/c2", "http://192.168.1.1:5000/c3", "http://192.168.1.1:5000/c4",
		}, " ")},
		{"too deep", strings.Repeat("<a>", 1000), "too deep"},
		{"too many elements", strings.Repeat("<a/>", 5000), "too large"},
		{"not closed", "<root><device>", "EOF"},
		{"nothing", "", "no document"},
		{"no XML", "hello", "no document"},
	} {
		offers, err := parseDescription([]byte(c.document), at, gateway)
		var urls []string
		for _, o := range offers {
			urls = append(urls, o.control.String())
		}
		if err == nil && strings.Join(urls, " ") != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", c.name, urls, err, c.want)
		}
	}
}

// The description that Debian's miniupnpd sends.
func TestRealDescription(t *testing.T) {
	document, err := os.ReadFile("testdata/miniupnpd-2.3.1.xml")
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse("http://192.168.1.1:5000/rootDesc.xml")
	if err != nil {
		t.Fatal(err)
	}
	offers, err := parseDescription(document, at, netip.MustParseAddr("192.168.1.1"))
	if err != nil || len(offers) != 1 || offers[0].kind != services[0] || offers[0].control.String() != "http://192.168.1.1:5000/ctl/IPConn" {
		t.Errorf("%v, %v", offers, err)
	}
}

func TestParseNotice(t *testing.T) {
	gateway := netip.MustParseAddr("192.168.1.1")
	notice := func(status, location string) string {
		return "HTTP/1.1 " + status + "\r\nCACHE-CONTROL: max-age=120\r\nLOCATION: " + location + "\r\nST: x\r\n\r\n"
	}
	for _, c := range []struct {
		name, notice string
		good         bool
	}{
		{"good", notice("200 OK", "http://192.168.1.1:5000/rootDesc.xml"), true},
		{"an error", notice("404 Not Found", "http://192.168.1.1:5000/rootDesc.xml"), false},
		{"elsewhere", notice("200 OK", "http://192.168.1.2:5000/rootDesc.xml"), false},
		{"by name", notice("200 OK", "http://router.local/rootDesc.xml"), false},
		{"HTTPS", notice("200 OK", "https://192.168.1.1/rootDesc.xml"), false},
		{"none", notice("200 OK", ""), false},
		{"somebody's search", "M-SEARCH * HTTP/1.1\r\n\r\n", false},
		{"half", notice("200 OK", "http://192.168.1.1:5000/rootDesc.xml")[:40], false},
	} {
		at, err := parseNotice([]byte(c.notice), gateway)
		if (err == nil) != c.good {
			t.Errorf("%s: %v, %v", c.name, at, err)
		}
	}
}

// fakeDevice is a device whose answers to actions come from act.
func fakeDevice(t *testing.T, act func(action, body string) (status int, answer string)) *igd {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, action, _ := strings.Cut(strings.Trim(r.Header.Get("SOAPAction"), `"`), "#")
		status, answer := act(action, string(body))
		w.WriteHeader(status)
		io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	control, err := url.Parse(server.URL + "/ctl")
	if err != nil {
		t.Fatal(err)
	}
	return &igd{network: Network{Gateway: loopback, Own: loopback}, control: control, service: services[1]}
}

func fault(code int) (int, string) {
	return 500, fmt.Sprintf(`<s:Envelope xmlns:s="x"><s:Body><s:Fault><detail><UPnPError><errorCode>%d</errorCode>`+
		`<errorDescription>why</errorDescription></UPnPError></detail></s:Fault></s:Body></s:Envelope>`, code)
}

const (
	goodAddress = `<s:Envelope xmlns:s="x"><s:Body><u:R><NewExternalIPAddress>203.0.113.9</NewExternalIPAddress></u:R></s:Body></s:Envelope>`
	goodEmpty   = `<s:Envelope xmlns:s="x"><s:Body><u:R/></s:Body></s:Envelope>`
)

var session = Want{UDP, 45672}

func TestIGDOpens(t *testing.T) {
	var conflicts, permanent int
	var adds []string
	d := fakeDevice(t, func(action, body string) (int, string) {
		switch action {
		case "GetExternalIPAddress":
			return 200, goodAddress
		case "AddPortMapping":
			adds = append(adds, body)
			if permanent > 0 && strings.Contains(body, "<NewLeaseDuration>600<") {
				permanent--
				return fault(igdPermanentOnly)
			}
			if conflicts > 0 {
				conflicts--
				return fault(igdConflict)
			}
			return 200, goodEmpty
		}
		return fault(401)
	})
	g, err := d.open(t.Context(), session, 45672)
	if err != nil || g != (granted{external: netip.MustParseAddrPort("203.0.113.9:45672"), lifetime: lifetime}) {
		t.Errorf("%+v, %v", g, err)
	}
	for _, want := range []string{"<NewInternalPort>45672</", "<NewInternalClient>127.0.0.1</", "<NewProtocol>UDP</"} {
		if !strings.Contains(adds[0], want) {
			t.Errorf("%s is not in %s", want, adds[0])
		}
	}
	conflicts = 2
	g, err = d.open(t.Context(), session, 45672)
	if err != nil || g.external.Port() == 45672 || g.external.Port() < 20000 {
		t.Errorf("somebody else has the port: %+v, %v", g, err)
	}
	conflicts = 100
	var refused *RefusedError
	if _, err = d.open(t.Context(), session, 45672); !errors.As(err, &refused) || refused.Code != igdConflict {
		t.Errorf("others have all ports: %v", err)
	}
	conflicts, permanent = 0, 100
	for range 2 {
		g, err = d.open(t.Context(), session, 45672)
		if err != nil || g.lifetime != 0 || permanent != 99 {
			t.Errorf("for ever only: %+v, %v", g, err)
		}
	}
}

// Whatever a device answers, the request ends with an error.
func TestIGDAnswersNonsense(t *testing.T) {
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"no address":      {200, `<a><NewExternalIPAddress></NewExternalIPAddress></a>`},
		"no IPv4 address": {200, `<a><NewExternalIPAddress>fe80::1</NewExternalIPAddress></a>`},
		"no XML":          {200, "hello"},
		"endless":         {200, "<a>" + strings.Repeat("x", 2*maxDocument) + "</a>"},
		"a redirection":   {302, goodAddress},
		"an odd code":     {500, `<a><errorCode>one</errorCode></a>`},
		"no code":         {500, `<a></a>`},
		"deep":            {200, strings.Repeat("<a>", 100000)},
	} {
		d := fakeDevice(t, func(string, string) (int, string) { return answer.status, answer.body })
		if g, err := d.open(t.Context(), session, 1); err == nil {
			t.Errorf("%s: %+v", name, g)
		}
	}
}

func FuzzParseDescription(f *testing.F) {
	at, err := url.Parse("http://192.168.1.1:5000/root.xml")
	if err != nil {
		f.Fatal(err)
	}
	gateway := netip.MustParseAddr("192.168.1.1")
	miniupnpd, err := os.ReadFile("testdata/miniupnpd-2.3.1.xml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(miniupnpd))
	f.Add(description("", services...))
	f.Add(description("<URLBase>http://192.168.1.1:80</URLBase>", services[1]))
	f.Fuzz(func(t *testing.T, document string) {
		offers, err := parseDescription([]byte(document), at, gateway)
		if (err == nil) != (len(offers) > 0) || len(offers) > maxOffers {
			t.Errorf("%v, %v", offers, err)
		}
		for _, o := range offers {
			if atGateway(o.control, gateway) != nil {
				t.Errorf("leads to %v", o.control)
			}
		}
	})
}

func FuzzParseNotice(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nLOCATION: http://192.168.1.1:5000/rootDesc.xml\r\n\r\n")
	gateway := netip.MustParseAddr("192.168.1.1")
	f.Fuzz(func(t *testing.T, notice string) {
		if at, err := parseNotice([]byte(notice), gateway); err == nil && at.Hostname() != "192.168.1.1" {
			t.Errorf("leads to %v", at)
		}
	})
}
