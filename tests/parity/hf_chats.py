"""Chat templates in the manner of each family, in our own words, and conversations to put through them."""

CHATML = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou help, and keep it short.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday is " ~ date_string ~ "\\n\\n" ~ system ~ "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('user and assistant must take turns') }}
{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

MISTRAL = """\
{%- set ns = namespace(turn=0, last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{%- endif %}
    {%- if message.role == 'stop' %}{% break %}{%- endif %}
    {%- if message.role not in ('tool',) and message.tool_calls is not defined %}
        {%- if (message.role == 'user') != (ns.turn % 2 == 0) %}
            {{- raise_exception("after the system's message, roles must alternate, got " + message.role) }}
        {%- endif %}
        {%- set ns.turn = ns.turn + 1 %}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and loop.index0 == ns.last %}
            {{- '[TOOLS] ' + tools | tojson + ' [/TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[CALLS] ' + message.tool_calls | map(attribute='function') | list | tojson + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[RESULT] ' + message.content | string + ' [/RESULT]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

HERMES = """\
{%- macro kind(schema) -%}
    {{ schema.type | default('any') }}{% if schema.enum is defined %}: {{ schema.enum | join(' or ') }}{% endif %}
{%- endmacro %}
{%- if tools %}
<|im_start|>system
{% for tool in tools %}
{{ tool | tojson(indent=2) }}
{% for name, schema in tool.function.parameters.properties | items %}
  {{ name }} ({{ kind(schema) }})
{% endfor %}
{% endfor %}<|im_end|>
{% endif %}
{%- if documents %}{{ documents | tojson }}{% endif %}
{%- for message in messages %}
<|im_start|>{{ message.role }}
{% if message.content is string %}
{{ message.content.split('</think>')[-1].lstrip('\\n') }}
{%- elif message.content is iterable %}
{{ message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}
{%- endif %}
{% for call in message.tool_calls | default([]) %}
<call>{{ call.function | tojson(sort_keys=true) }}</call>
{% endfor %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{% endif %}
"""

TRAINED = """\
{% for message in messages %}
{% set note = 'outside' %}
<|im_start|>{{ message.role }}
  {% if message.role == 'assistant' %}
    {% generation %}
    {% set note = 'inside' %}
  {{ message.content }} {{ note }}<|im_end|>
    {% endgeneration %}
  {% else %}
{{ message.content }}<|im_end|>
{% endif %}
{{ note }} {{ pad_token }} {{ unk_token }} {{ messages | length }}
{% endfor %}
"""

TEMPLATES = {
    "chatml": CHATML, "llama": LLAMA, "gemma": GEMMA, "mistral": MISTRAL, "hermes": HERMES, "trained": TRAINED,
}  # fmt: skip

USER = {"role": "user", "content": "  Is 1 < 2 & \"3\" > '2'?\n"}
SYSTEM = {"role": "system", "content": "Größe zählt nicht. 🙂\n"}
ANSWER = {"role": "assistant", "content": "<think>let me see</think>\n\nyes  "}
CALL = {
    "role": "assistant", "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"where": "Köln", "days": 2}}}],
}  # fmt: skip
RESULT = {"role": "tool", "content": '{"sky": "<clear>"}'}
TEXTS = {"type": "text", "text": "one "}, {"type": "text", "text": "two"}
PARTS = {"role": "user", "content": [TEXTS[0], {"type": "image"}, TEXTS[1]]}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, USER],
    "long": [SYSTEM, USER, ANSWER, USER, ANSWER],
    "twice": [USER, USER],
    "stopped": [USER, {"role": "stop", "content": ""}, USER],
    "tools": [USER, CALL, RESULT, ANSWER, USER],
    "parts": [PARTS],
}

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Sky & <temperature> für morgen",
    "parameters": {"type": "object", "required": ["where"], "properties": {
        "where": {"type": "string"}, "unit": {"type": "string", "enum": ["°C", "°F"]}, "days": {}}},
}}]  # fmt: skip
